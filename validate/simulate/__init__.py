"""The real engines at the real model size and world size, in one process, without a GPU.

    from estimators.memory import resolve
    from validate.simulate import simulate

    found = simulate(resolve("llama-8b", "8xH100", "zero3", "cpu", stack="deepspeed"))
    found.allocated, found.instants["backward"].gpu

The engine's own code runs on fake tensors inside a fake process group; every storage is known by its owner, and by the
line that allocated it. What a simulation cannot know, because its device is a CPU that is not there:

* temporaries inside one kernel: flash attention's backward accumulates in fp32 on CUDA, SDPA on a CPU keeps 24 bytes
  of random state less (``estimators.devices``); resolve a run with ``device="cpu"`` to compare like with like;
* autocast casts by the CPU's list of operations, dropout keeps a mask of the input's dtype;
* host and device are one: what is offloaded is known by its owner, and copies between the two do not exist;
* the order in which streams free memory: frees happen when the program drops a tensor.
"""

from __future__ import annotations

from validate.simulate.simulation import Simulation, simulate

__all__ = ["Simulation", "simulate"]
