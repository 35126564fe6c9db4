"""Two policies: ``documents`` is the tree as written, ``current`` the same with what has aged amended, with sources."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.errors import UnknownName
from selector.tree import places
from selector.tree.data import LARGE, LONG
from selector.tree.nodes import Amendment, Gate

_FSDP2_GATE = (Gate("torch", "2.6.0"),)

AMENDMENTS = (
    Amendment(
        "deepspeed-compiles", "compile", places.COMPILE_ONLY,
        "DeepSpeed compiles from 0.14: stages 1 and 2 well, stage 3 with breaks; so experience is still asked about",
        "pytorch#115484, DeepSpeed#6719, DeepSpeed PR7755; engine.compile with stages 1 and 3 was run with 0.19.8",
        lambda s: s.compile, to="deepspeed_experience", gates=(Gate("deepspeed", "0.14.0"),),
    ),
    Amendment(
        "large-fsdp2", "size", places.FSDP_30B,
        "FSDP2 frees what FSDP1 held back and trains 70B and 405B models; so above 30B the team is asked too",
        "torchtitan docs/performance.md (70B on 256, 405B on 512 H100)",
        lambda s: s.billions > LARGE and s.team == "pytorch", to="team", gates=_FSDP2_GATE,
    ),
    Amendment(
        "ddp-where-it-fits", "fsdp", places.SMALL_FSDP,
        "everything fits on each GPU: nothing needs to be sharded, DDP communicates least",
        "document 2, PyTorch DDP：简洁即正义; OLMo#762 (8034 against 1747 tokens/s/GPU, OLMo-1B on 4 GPUs)",
        lambda s: bool(s.ddp_fits), to="ddp",
    ),
    Amendment(
        "no-deepspeed-for-itself", "deepspeed", places.LARGE_DEEPSPEED,
        "everything fits on each GPU: nothing needs to be sharded, DDP communicates least",
        "document 2, 工程实践建议: 不要为了用 DeepSpeed 而用 DeepSpeed; OpenTau PR273",
        lambda s: bool(s.ddp_fits), to="ddp",
    ),
    Amendment(
        "old-deepspeed-does-not-compile", "deepspeed", places.TREE,
        "this DeepSpeed does not compile; FSDP does, as the first document's text says",
        "pytorch#115484; document 1, 四、选型决策的多维框架",
        lambda s: s.compile, to="fsdp", gates=(Gate("deepspeed", until="0.14.0"),),
    ),
    Amendment(
        "zero2-for-long-sequences", "deepspeed", places.SUMMARY_30B,
        f"from {LONG} tokens ZeRO-2 where it fits, as the second document says: it gathers once a step, ZeRO-3 twice a "
        "micro-step (which longer sequences hide better, so the ranking may still prefer another)",
        "document 2, scenario 2; DeepSpeed#2928",
        lambda s: s.seq_len >= LONG and bool(s.zero2_fits), strategy="zero2",
    ),
    Amendment(
        "fsdp2", "fsdp", places.TREE,
        "FSDP is fully_shard (FSDP2): FullyShardedDataParallel is deprecated",
        "torch.distributed.fsdp.fully_shard; accelerate needs torch 2.6 for fsdp_version 2",
        lambda s: True, gates=_FSDP2_GATE,
    ),
    Amendment(
        "fsdp1-on-old-torch", "fsdp", places.TREE,
        "this torch has no fully_shard that accelerate takes: FSDP1",
        "accelerate, utils/dataclasses.py: fsdp_version 2 requires torch 2.6",
        lambda s: True, strategy="fsdp1-full-shard", gates=(Gate("torch", until="2.6.0"),),
    ),
    Amendment(
        "trainer-takes-fsdp", "fsdp", places.TRAINER_FLAG,
        "the Trainer starts FSDP by an argument too (fsdp, or an accelerate configuration)",
        "transformers TrainingArguments.fsdp",
        lambda s: s.stack in ("trainer", "trl"),
    ),
    Amendment(
        "qlora-shards", "deepspeed", places.SMALL_CARD,
        "QLoRA shards under ZeRO-3 and FSDP when the 4-bit storage is a float type; on one GPU ZeRO adds nothing to it",
        "transformers#24395, accelerate FSDP plugin, LLaVA#528",
        lambda s: s.method == "qlora", gates=(Gate("bitsandbytes", "0.43.0"),),
    ),
)  # fmt: skip

POLICIES: Mapping[str, tuple[Amendment, ...]] = {"documents": (), "current": AMENDMENTS}


def check_policy(policy: str) -> str:
    """``policy`` itself, or ``UnknownName``."""
    if policy not in POLICIES:
        raise UnknownName("policy", policy, POLICIES, f"(one of {', '.join(POLICIES)})")
    return policy
