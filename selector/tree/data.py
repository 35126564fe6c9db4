"""The tree of the first document, and what both documents say beside it."""

from __future__ import annotations

from selector.tree import places
from selector.tree.nodes import Answer, Conflict, Leaf, Question, Remark, Situation

SMALL, LARGE = 7.0, 30.0  # billions; both bounds belong to the middle
TEAMLESS_FSDP = 13.0  # billions up to which the summary of the first document is content with FSDP
LONG = 8192  # tokens: the sequence that the second document calls long


def _size(s: Situation) -> tuple[str, str]:
    answer = "lt7b" if s.billions < SMALL else "gt30b" if s.billions > LARGE else "7b-30b"
    return answer, s.size_because or f"{s.billions:g}B"


def _compile(s: Situation) -> tuple[str, str]:
    return ("yes", "torch.compile was asked for") if s.compile else ("no", "torch.compile was not asked for")


def _experience(s: Situation) -> tuple[str, str]:
    if s.knows_deepspeed:
        return "yes", "team deepspeed" if s.team == "deepspeed" else "DeepSpeed experience was stated"
    return "no", f"team {s.team}, no DeepSpeed experience stated" if s.team else "nobody stated DeepSpeed experience"


def _team(s: Situation) -> tuple[str, str]:
    if s.team == "pytorch":
        return "pytorch", "team pytorch"
    if s.team in ("deepspeed", "distributed"):
        return "distributed", f"team {s.team}" + (" knows distributed systems" if s.team == "deepspeed" else "")
    return "unknown", "no team was given: the first document's summary decides by size"


QUESTIONS = {
    q.id: q
    for q in (
        Question("size", "How large is the model?", "模型规模?", places.SIZE_Q, (
            Answer("lt7b", "below 7B", "compile"),
            Answer("7b-30b", "7B to 30B", "team"),
            Answer("gt30b", "above 30B", "deepspeed"),
        ), _size),
        Question("compile", "Is torch.compile needed?", "需要torch.compile?", places.COMPILE_Q, (
            Answer("yes", "yes", "fsdp"),
            Answer("no", "no", "deepspeed_experience"),
        ), _compile),
        Question("deepspeed_experience", "Is there DeepSpeed experience?", "已有DeepSpeed经验?", places.EXPERIENCE_Q, (
            Answer("yes", "yes", "deepspeed"),
            Answer("no", "no", "fsdp"),
        ), _experience),
        Question("team", "What is the team's background?", "团队技术背景?", places.TEAM_Q, (
            Answer("pytorch", "PyTorch", "fsdp"),
            Answer("distributed", "distributed systems", "deepspeed"),
            Answer("unknown", "not given, at most 13B", "fsdp", TEAMLESS_FSDP),
            Answer("unknown", "not given, above 13B", "deepspeed"),
        ), _team),
    )
}  # fmt: skip
ROOT = "size"

LEAVES = {
    leaf.id: leaf
    for leaf in (
        Leaf("fsdp", "FSDP", "fsdp-full-shard", places.TREE),
        Leaf("deepspeed", "DeepSpeed", "zero3", places.TREE),
        Leaf("ddp", "DDP", "ddp", places.SMALL_DDP),  # reached by amendments only: the drawn tree has no such leaf
    )
}

REMARKS = (
    Remark("config-before-model", "deepspeed", "Build HfDeepSpeedConfig before the model.", places.BEFORE_MODEL,
           lambda s, leaf: leaf == "deepspeed"),
    Remark("custom-kernels", "deepspeed", "Check custom CUDA kernels against the engine.", places.KERNELS,
           lambda s, leaf: leaf == "deepspeed"),
    Remark("export", "deepspeed", "Merge the shards before inference.", places.EXPORT,
           lambda s, leaf: leaf == "deepspeed"),
    Remark("trainer-flag", "deepspeed", "In the Trainer DeepSpeed is one argument.", places.TRAINER_FLAG,
           lambda s, leaf: leaf == "deepspeed" and s.stack in ("trainer", "trl")),
    Remark("not-for-itself", "deepspeed", "Do not use DeepSpeed for its own sake.", places.NOT_FOR_ITSELF,
           lambda s, leaf: leaf == "deepspeed" and bool(s.ddp_fits)),
    Remark("offload-slow", "deepspeed", "Offload costs speed.", places.OFFLOAD_SLOW,
           lambda s, leaf: leaf == "deepspeed" and s.ddp_fits is False),
    Remark("profiler", "fsdp", "PyTorch's profiler shows what FSDP does.", places.PROFILER,
           lambda s, leaf: leaf == "fsdp"),
    Remark("own-loop", "fsdp", "FSDP suits a loop of your own.", places.CUSTOM_LOOP,
           lambda s, leaf: leaf == "fsdp" and s.stack == "torch"),
    Remark("small-fsdp", "fsdp", "Below 7B on one node FSDP needs no configuration.", places.SMALL_FSDP,
           lambda s, leaf: leaf == "fsdp" and s.billions < SMALL),
    Remark("quick", "ddp", "DDP is what quick experiments want.", places.QUICK_DDP,
           lambda s, leaf: leaf == "ddp"),
    Remark("long", "size", "Checkpointing and flash attention for long sequences.", places.LONG_SAVES,
           lambda s, leaf: s.seq_len >= LONG),
    Remark("small-card", "size", "QLoRA, with offload, on a small card.", places.SMALL_CARD,
           lambda s, leaf: s.gpus == 1 and s.ddp_fits is False and s.method == "full"),
)  # fmt: skip

CONFLICTS = (
    Conflict("small-models", places.SMALL_FSDP, places.SMALL_DDP,
             "`documents` follows the drawn tree, which has no DDP; `current` takes DDP where it fits",
             lambda s, leaf: s.billions < SMALL and not s.knows_deepspeed),
    Conflict("compile-above-7b", places.TREE, places.COMPILE_ONLY,
             "`documents` follows the drawn tree, which asks below 7B only; `current` asks the versions",
             lambda s, leaf: s.compile and s.billions >= SMALL),
    Conflict("no-team", places.SUMMARY_13B, places.MIDDLE_BOTH,
             "without a team FSDP is the answer up to 13B, DeepSpeed above it",
             lambda s, leaf: SMALL <= s.billions <= LARGE and s.team is None),
    Conflict("ample-memory", places.AMPLE_NATIVE, places.LARGE_DEEPSPEED,
             "`documents` follows the drawn tree; `current` takes DDP where it fits",
             lambda s, leaf: s.billions > LARGE and bool(s.ddp_fits)),
    Conflict("long-sequences", places.SUMMARY_30B, places.LONG_ZERO2,
             "`documents` keeps ZeRO-3, which is what its leaf means; `current` takes ZeRO-2 where that fits",
             lambda s, leaf: s.seq_len >= LONG and leaf == "deepspeed"),
)  # fmt: skip
