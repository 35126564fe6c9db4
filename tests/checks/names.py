"""The collected rules, by section: the list that `selector.checks` has to cover."""

from __future__ import annotations

SECTIONS = {
    "A": """
        ds-batch-triangle ds-batch-none ds-batch-ok-but-world1 ds-fp16-bf16-both ds-bool-as-string
        ds-legacy-bfloat16-key ds-auto-without-hf ds-auto-hidden-size ds-auto-bucket-stage2
        offload-param-needs-stage3 offload-needs-zero ds-offload-object ds-deprecated-cpu-offload ds-unknown-key
        ds-gather-16bit-alias zero3-gather-on-save zero-world-size-1 ds-replicated-part-exceeds-gpu
        bucket-larger-than-model overlap-comm-buffer tiny-bucket-overlap stage3-live-params ds-bf16-stage0
        bf16-grad-accum ds-bf16-master-flags ds-amp-with-zero onebit-with-zero ds-untested-optimizer
        ds-offload-client-optimizer offload-ratio-stage nvme-needs-path-aio nvme-buffer-size nvme-misplaced-keys
        nvme-disk-space pin-memory-host pin-memory-wsl2 hpz-with-offload hpz-memory zero3-multinode-slow
        zero3-moe-leaf native-moe-zero3 elastic-ckpt-zero3 zero3-torch-compile zero-no-sync
    """,
    "B": """
        hf-ds-mismatch ds-batch-missing-gas accel-ds-file-and-inline accel-unknown-key accel-zero3-save-16bit
        accel-zero3-init-flag accel-gas-auto zero3-init-order zero3-device-map bnb-8bit-zero3
        zero3-qlora-versions zero3-peft-nonreentrant zero3-generate-synced trl-ds3-gather-false
        zero3-multimodal-branch accel-ds-multi-model deepspeed-min-version resume-world-size
    """,
    "C": """
        fsdp-no-wrap-policy fsdp-wrap-class fsdp-size-wrap-tied fsdp-min-num-params-too-small
        fsdp-noshard-or-1proc hybrid-needs-wrap-or-mesh hybrid-world-size hybrid-shard-dim-1 hybrid-memory
        fsdp-use-orig-params fsdp-mixed-frozen fsdp-lora-dtype fsdp-qlora-dtype fsdp-8bit
        fsdp-bf16-load-no-master fsdp-efficient-loading-sync fsdp-efficient-loading-inactive fsdp-host-load
        fsdp-full-state-dict-size fsdp-sharded-final-save sharded-needs-shared-fs fsdp-no-sync-memory
        fsdp-cpu-offload-slow fsdp-ac-duplicate fsdp-kernel-ac
    """,
    "D": """
        fsdp2-torch-version fsdp2-reshard-type fsdp2-sharding-strategy-ignored accel-parallelism-config-v1
        fsdp2-legacy-keys fsdp2-forward-prefetch fsdp2-local-state-dict fsdp-version-default
        fsdp-qlora-quant-storage fsdp2-upcast-frozen fsdp2-no-shard-dim fsdp2-prepare-together
        fsdp2-offload-gloo fused-adamw-cpu-offload fsdp2-tied-embeddings fsdp2-no-sync-api fsdp2-rank0-gpu-load
        torchao-fp8-fsdp2
    """,
    "E": """
        fsdp-mesh-hybrid-version fsdp-ignored-frozen fsdp-root-vocab ddp-bucket-copy ddp-gc-find-unused
        ddp-reentrant fits-on-one-gpu-use-ddp adam-foreach-temp
    """,
    "F": """
        trainer-fp16-bf16-both fp16-amp-trainable-fp16 fp16-on-bf16-model save-only-load-best
        save-only-model-sharded peft-modules-to-save-cost logits-memory no-checkpointing-long
        dpo-reference-model quantized-checkpoint-dequantized device-map-in-distributed bnb8bit-optim-fsdp
        unsloth-with-sharding downcast-bf16 ddp-timeout-default stale-default-config
    """,
    "G": """
        bf16-needs-ampere tf32-needs-ampere flash-attn-arch fp8-arch rtx40-p2p-env nccl-ib-disabled-multinode
        no-nvlink-sharding host-ram-insufficient offload-unneeded cpu-adam-build aio-missing alloc-conf
        nccl-reserve gpu-floor-independent-of-n first-step-peak
    """,
}  # fmt: skip
NAMES = tuple(name for names in SECTIONS.values() for name in names.split())
