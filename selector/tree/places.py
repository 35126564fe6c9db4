"""The two documents, and where in them a sentence stands: as written, and in English."""

from __future__ import annotations

from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One sentence of a document: ``document`` is 1 or 2, ``section`` its heading, then the sentence twice."""

    document: int
    section: str
    chinese: str
    english: str

    @property
    def source(self) -> str:
        """The place in one line: ``document 1, 四、选型决策的多维框架``."""
        return f"document {self.document}, {self.section}"

    def __str__(self) -> str:
        return f"{self.source}: “{self.chinese}” ({self.english})"


TITLES = {
    1: ("DeepSpeed与FSDP的选型对比：不同规模模型下的通信效率与易用性",
        "Choosing between DeepSpeed and FSDP: communication and ease of use by model size"),
    2: ("PyTorch vs DeepSpeed：ms-swift分布式训练性能横向测评",
        "PyTorch against DeepSpeed: distributed training with ms-swift compared"),
}  # fmt: skip

FRAMEWORK = "四、选型决策的多维框架"
SUMMARY = "五、总结"
TABLE = "三、不同规模模型的实测对比"
DDP = "PyTorch DDP：简洁即正义"
ZERO = "DeepSpeed ZeRO：把大模型塞进小卡里的艺术"
SCENES = "ms-swift 如何统一这场“战争”"
ADVICE = "工程实践建议：如何做出正确选择"
CONFLICT = "分布式训练的核心矛盾：显存 vs 效率 vs 易用性"

TREE = Place(1, FRAMEWORK, "graph TD S[开始选型]", "the drawn tree")
SIZE_Q = Place(1, FRAMEWORK, "Q1{模型规模?}", "how large is the model?")
COMPILE_Q = Place(1, FRAMEWORK, "Q2{需要torch.compile?}", "is torch.compile needed?")
EXPERIENCE_Q = Place(1, FRAMEWORK, "Q3{已有DeepSpeed经验?}", "is there DeepSpeed experience already?")
TEAM_Q = Place(1, FRAMEWORK, "Q4{团队技术背景?}", "what is the team's background?")

SMALL_FSDP = Place(
    1, FRAMEWORK, "7B参数、单节点FSDP零配置优势明显",
    "below 7B on one node, FSDP without configuration has a clear advantage",
)  # fmt: skip
MIDDLE_BOTH = Place(
    1, FRAMEWORK, "7B-30B、多节点两者均可DeepSpeed的通信重叠优化开始显现优势",
    "7B to 30B on several nodes: either; DeepSpeed's overlap begins to show",
)  # fmt: skip
LARGE_DEEPSPEED = Place(
    1, FRAMEWORK, "30BDeepSpeed的ZeRO-Infinity和更细粒度的显存控制在工程上更成熟",
    "above 30B DeepSpeed's ZeRO-Infinity and finer control of memory are more mature",
)  # fmt: skip
SUMMARY_13B = Place(
    1, SUMMARY, "对于大多数7B-13B规模的训练需求FSDPFULL_SHARD可以满足需求且学习成本更低",
    "for most training of 7B to 13B FSDP FULL_SHARD is enough and quicker to learn",
)  # fmt: skip
SUMMARY_30B = Place(
    1, SUMMARY, "当模型规模超过30B或需要极致的通信效率时DeepSpeed的ZeRO-3是更稳妥的选择",
    "above 30B, or where communication must be as efficient as can be, DeepSpeed's ZeRO-3 is the safer choice",
)  # fmt: skip
COMPILE_ONLY = Place(
    1, FRAMEWORK, "如果需要torch.compileFSDP是唯一选择DeepSpeed目前不兼容",
    "where torch.compile is needed FSDP is the only choice, DeepSpeed is not compatible at present",
)  # fmt: skip
TRAINER_FLAG = Place(
    1, FRAMEWORK, "与HuggingFace Trainer集成DeepSpeed通过deepspeed参数一键启用",
    "with the Hugging Face Trainer DeepSpeed is one argument",
)  # fmt: skip
CUSTOM_LOOP = Place(
    1, FRAMEWORK, "需要自定义训练循环FSDP作为PyTorch原生方案更灵活",
    "for a training loop of one's own FSDP is more flexible",
)  # fmt: skip
PROFILER = Place(
    1, FRAMEWORK, "调试和profilingFSDP利用PyTorch Profiler学习成本更低",
    "debugging and profiling: FSDP works with the PyTorch Profiler, less to learn",
)  # fmt: skip
KERNELS = Place(
    1, FRAMEWORK, "如果在使用自定义CUDA kernel需验证与DeepSpeed engine的兼容性",
    "custom CUDA kernels must be checked against the DeepSpeed engine",
)  # fmt: skip
FSDP_30B = Place(
    1, TABLE, "30B模型下FSDP失败的原因是其默认的参数分片和通信调度策略在处理超大模型时显存峰值较高",
    "at 30B FSDP fails because its default sharding and scheduling peak higher on very large models",
)  # fmt: skip

SMALL_DDP = Place(2, DDP, "中小型模型训练（<7B）", "DDP suits small and medium models, below 7B")
QUICK_DDP = Place(2, DDP, "快速实验验证", "DDP suits quick experiments")
AMPLE_DDP = Place(2, DDP, "已有集群且显存充足的企业环境", "DDP suits clusters with memory to spare")
AMPLE_NATIVE = Place(
    2, ADVICE, "如果已有充足的 H100/A100 资源，且团队具备较强的运维能力，直接使用 DDP 或 FSDP 反而更稳定高效",
    "with H100s or A100s to spare and a team that can run them, plain DDP or FSDP is steadier and faster",
)  # fmt: skip
NOT_FOR_ITSELF = Place(2, ADVICE, "不要为了用 DeepSpeed 而用 DeepSpeed", "do not use DeepSpeed for its own sake")
LONG_ZERO2 = Place(
    2, SCENES, "使用 ZeRO-2 避免梯度冗余存储；注意：长序列任务慎用 ZeRO-3，因频繁 AllGather 可能成为性能瓶颈",
    "scenario 2: ZeRO-2; for long sequences be careful with ZeRO-3, its all-gathers may bind",
)  # fmt: skip
LONG_SAVES = Place(
    2, SCENES, "开启 DeepSpeed 的 activation checkpointing；结合 FlashAttention-2 减少显存峰值",
    "scenario 2: activation checkpointing, with FlashAttention-2, for long sequences",
)  # fmt: skip
SMALL_CARD = Place(
    2, SCENES, "使用 ms-swift 内置的 DeepSpeed + QLoRA 组合；启用 ZeRO-3 + CPU Offload",
    "scenario 1, an A10 and an 8B: DeepSpeed with QLoRA, ZeRO-3 with CPU offload",
)  # fmt: skip
BEFORE_MODEL = Place(
    2, ZERO, "HfDeepSpeedConfig必须在模型实例化之前就初始化", "HfDeepSpeedConfig must exist before the model is built"
)
OFFLOAD_SLOW = Place(2, ZERO, "CPU offload 引入延迟，训练速度可能下降", "CPU offload may slow training")
EXPORT = Place(
    2, ZERO, "Checkpoint 导出麻烦，需合并分片权重才能用于推理",
    "checkpoints must be merged from shards before inference",
)  # fmt: skip
