"""Whose an experiment or a claim is: the paper's, by section; ours, beyond it; or a user's."""

import re
from collections.abc import Iterable

from lfom.report.results import Claim, Result

PAPER, OURS, YOURS = "The paper", "Ours, beyond the paper", "Experiments of your own"
WHOSE = (PAPER, OURS, YOURS)
SECTION = re.compile(r"(?P<appendix>Appendix )?(?P<number>[A-Z](?![a-z])|\d+(?:\.\d+)*)(?![\w:])")
WHOLE = "The paper as a whole"


def section_of(text: str) -> str:
    """The section of the paper that a text begins with.

    >>> section_of("3.3, Figure lfom_nonisotropic"), section_of("Section 3"), section_of("Appendix C, Figure layers5")
    ('3.3', '3', 'Appendix C')
    >>> section_of("all figures"), section_of("")
    ('', '')
    """
    found = SECTION.match(text.removeprefix("Section "))
    return "" if found is None else (found["appendix"] or "") + found["number"]


def is_ours(text: str) -> bool:
    """Whether a section, or a claim, says that it is not the paper's.

    >>> is_ours("4.2, our own"), is_ours("Ours: experts win."), is_ours("(setting of Garg et al., 2022)"), is_ours("3.3")
    (True, True, True, False)
    """
    return bool(re.search(r"\bours?\b", text.lower())) or "et al." in text


def whose(result: Result) -> str:
    """One of WHOSE."""
    if result.meta.source != "lfom":
        return YOURS
    return OURS if is_ours(result.meta.section) else PAPER


def group_of(result: Result, claim: Claim) -> tuple[str, str]:
    """Whose a claim is, and the section that makes it."""
    owner = whose(result)
    if owner == PAPER and (claim.claim.startswith("Ours:") or is_ours(claim.section)):
        owner = OURS
    return owner, section_of(claim.section) if owner == PAPER else ""


def in_paper_order(section: str) -> tuple[bool, bool, tuple[int, ...], str]:
    """A key that sorts sections as they stand: numbers, appendices, and what belongs to no section.

    >>> sorted(["", "Appendix B", "3.3", "3", "10", "4.1"], key=in_paper_order)
    ['3', '3.3', '4.1', '10', 'Appendix B', '']
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", section))
    return not section, section.startswith("Appendix"), numbers, section


def heading(section: str) -> str:
    """What stands above the claims of a section."""
    return WHOLE if not section else section if section.startswith("Appendix") else f"Section {section}"


def by_owner(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Experiments of the paper by section, ours, and a user's; otherwise in the order given."""
    groups: dict[str, list[Result]] = {owner: [] for owner in WHOSE}
    for result in found:
        groups[whose(result)].append(result)
    groups[PAPER].sort(key=lambda result: in_paper_order(section_of(result.meta.section)))
    return {owner: results for owner, results in groups.items() if results}


def claims_by_group(found: Iterable[Result]) -> dict[tuple[str, str], list[tuple[Result, Claim]]]:
    """All claims: the paper's by section in its order, then ours, then a user's."""
    groups: dict[tuple[str, str], list[tuple[Result, Claim]]] = {}
    for result in found:
        for claim in result.claims:
            groups.setdefault(group_of(result, claim), []).append((result, claim))
    order = sorted(groups, key=lambda group: (WHOSE.index(group[0]), in_paper_order(group[1])))
    return {group: groups[group] for group in order}
