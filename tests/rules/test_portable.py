"""The repository names no place of the machine it was written on, and its tests read nothing outside it."""

from __future__ import annotations

import re

import pytest

from tests.rules.tree import ROOT, at, read, report, texts

# Folders that differ between machines. System interfaces (/proc, /sys, /dev, /etc, /usr) are the same everywhere.
PLACES = re.compile(r"(?<![\w.$}~-])/(home|root|work|opt|mnt|media|Users|private|tmp|var/tmp)/[\w.]")
HOSTS = re.compile(
    r"\b(pypi|pythonhosted|npmjs|crates|rubygems|maven|anaconda|conda)\.(org|com|io)\b|\bdownload\.pytorch\.org\b|\bproxy\.golang\.org\b"
)
OUTSIDE = re.compile(r"\.\./shared\b|/shared/")


def hits(text: str, rule: re.Pattern[str]) -> list[tuple[int, str]]:
    return [(number, match.group()) for number, line in enumerate(text.splitlines(), 1) if (match := rule.search(line))]


@pytest.mark.parametrize("rule", [PLACES, HOSTS, OUTSIDE], ids=["places", "registries", "outside"])
def test_nothing_of_one_machine(rule: re.Pattern[str]):
    own = ROOT / "tests" / "rules" / "test_portable.py"
    report([f"{at(path, line)}: {word}" for path in texts() if path != own for line, word in hits(read(path), rule)])


def test_the_rule_itself():
    for line in ("open('/home/me/x')", 'DIR = "/work/main"', "cd /root/.cache", "/tmp/out.txt"):
        assert hits(line, PLACES), line
    for line in ("tests/work/x", "{root}/work/x", "~/work/y", "a/home/b", "/proc/self/maps"):
        assert not hits(line, PLACES), line
    assert hits("index = pypi" + ".org/simple", HOSTS)
    assert hits("open('../shared/x.json')", OUTSIDE)
