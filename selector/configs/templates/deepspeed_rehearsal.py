# mypy: ignore-errors
"""DeepSpeed without a GPU."""


def rehearsal(config):
    """Nothing is compiled: torch's Adam in place of DeepSpeed's kernels, gloo in place of shared memory."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    config["zero_force_ds_cpu_optimizer"] = False
    config["zero_allow_untested_optimizer"] = True
    if config.get("optimizer", {}).get("type") == "AdamW":
        config["optimizer"]["params"] |= {"torch_adam": True, "fused": True}
    for block in ("offload_optimizer", "offload_param"):
        config["zero_optimization"].get(block, {})["pin_memory"] = False
    return config
