"""Write ``docs/documents.md``: the two documents claim by claim, each beside what a command of this project computes.

    python docs/make_documents.py            # writes the page
    python docs/make_documents.py --check    # exits with 1 where the page is not what it would write

Every number comes from the JSON of the command that stands under the claim; nothing is typed in.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from claims import first, second  # noqa: E402

PAGE = HERE / "documents.md"
CLAIMS = (*first.CLAIMS, *second.CLAIMS)
HEAD = """# The two documents, claim by claim

Written by `python docs/make_documents.py`; every number is the answer of the command under its claim. Memory is of one
GPU, as nvidia-smi shows it: tensors, the allocator's reserve, context, communicators; the verdict compares it with what
the card reports. Full training means AdamW with 32-bit states (`bf16-mixed`), 16 bytes a parameter, unless said
otherwise. Speeds are expected values of the time model.

Document 1: DeepSpeed与FSDP的选型对比：不同规模模型下的通信效率与易用性

Document 2: PyTorch vs DeepSpeed：ms-swift分布式训练性能横向测评

| | claim | |
|---|---|---|
"""


def page() -> str:
    rows, sections = [], []
    for number, claim in enumerate(CLAIMS, 1):
        verdict, text, commands = claim.examine()
        rows.append(f"| {number} | {claim.title} | {verdict} |")
        shown = "\n".join(f"    dist-advisor {c}" for c in dict.fromkeys(commands))
        sections.append(
            f"## {number}. {claim.title}: {verdict}\n\n{claim.place}: “{claim.quote}”\n\n{text}\n\n{shown}\n"
        )
    return HEAD + "\n".join(rows) + "\n\n" + trees() + "\n".join(sections)


def trees() -> str:
    """The tree as the first document draws it, and with what has aged."""
    return (
        "## The tree\n\nAs the first document draws it (`dist-advisor tree --policy documents`):\n\n"
        "![The tree of the documents](img/tree-documents.svg)\n\n"
        "As `recommend` reads it (`dist-advisor tree`, whose text names the source of each slanted name):\n\n"
        "![The tree with what has aged](img/tree-current.svg)\n\n"
    )


def main() -> int:
    written = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != written)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
