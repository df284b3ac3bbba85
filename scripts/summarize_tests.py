#!/usr/bin/env python3
"""Summarises a run of scripts/test.sh or nightly.sh: a closing line, reasons of skips.

Reads JUnit files (<preset>.xml) of ctest and fuzz.sh in FOLDER and, where a test is a
GoogleTest program, the cases that it wrote into <preset>-cases/.

<preset>-tests.txt, where there is one, lists the tests that should have run.
A test counts as skipped if it said so (by the skip code, or case by case) and
tests/permitted_skips.txt allows the reason. Any other test that did not run has
failed: its executable is missing, a file that it needs is missing, or nobody
allowed the skip. Exit status 1 when a test failed, when a preset left no
result, or when nothing ran.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


PERMITTED = pathlib.Path(__file__).resolve().parents[1] / "tests/permitted_skips.txt"


def permitted_skips(path):
    """One regular expression per line; # begins a comment."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [re.compile(line) for line in lines if line]


def unittest_cases(output):
    """(run, failed, skip reasons) of a Python unittest run, or None."""
    ran = re.search(r"^Ran (\d+) tests? in", output, re.M)
    if not ran:
        return None
    failed = sum(
        int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output)
    )
    reasons = re.findall(r"\.\.\. skipped ['\"](.*)['\"]$", output, re.M)
    return int(ran.group(1)), failed, reasons


def gtest_cases(path):
    """(run, failed, skip reasons) of one GoogleTest XML file."""
    run, failed, reasons = 0, 0, []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        run += 1
        if case.find("failure") is not None:
            failed += 1
        elif skipped is not None:
            text = (skipped.get("message") or skipped.text or "").strip()
            reasons.append(f"{name}: {text.splitlines()[-1] if text else '?'}")
    return run, failed, reasons


def preset_counts(folder, preset, permitted):
    passed, failures, skips = 0, [], []

    def skip(name, reason):
        if any(pattern.search(reason) for pattern in permitted):
            skips.append(f"{name}: {reason}")
        else:
            failures.append(f"{name}: skipped without permission: {reason}")

    root = ElementTree.parse(folder / f"{preset}.xml").getroot()
    expected = folder / f"{preset}-tests.txt"
    if expected.exists():
        ran = {test.get("name") for test in root.iter("testcase")}
        for name in sorted(set(expected.read_text().split()) - ran):
            failures.append(f"{preset}: {name}: did not run: its time was up")
    for test in root.iter("testcase"):
        name = f"{preset}: {test.get('name')}"
        status = test.get("status")
        output = test.findtext("system-out") or ""
        program = test.get("name").replace("/", "_")
        cases_file = folder / f"{preset}-cases" / f"{program}.xml"
        # GoogleTest programs say more in their own XML than in ctest's; Python
        # tests say it in their output. Other programs count as one case.
        if cases_file.exists():
            cases = gtest_cases(cases_file)
        else:
            cases = unittest_cases(output)
        if status in ("notrun", "disabled"):
            last = [line for line in output.splitlines() if line.strip()]
            reason = last[-1] if last else "not run"
            skipped = test.find("skipped")
            message = skipped.get("message", "") if skipped is not None else ""
            if message.startswith("SKIP_"):
                skip(name, reason)
            else:
                failures.append(f"{name}: did not run: {reason}")
            continue
        run, failed, reasons = cases or (1, 0, [])
        for reason in reasons:
            skip(name, reason)
        if status == "fail":
            # A crash or time-out leaves no count of its own: count at least one
            # failure.
            failed = max(failed, 1)
            run = max(run, failed)
            failures += [name] * failed
        passed += run - failed - len(reasons)
    return passed, failures, skips


def main():
    folder = pathlib.Path(sys.argv[1])
    permitted = permitted_skips(PERMITTED)
    presets = sorted(path.stem for path in folder.glob("*.xml"))
    built = sorted(p.name[: -len("-build.log")] for p in folder.glob("*-build.log"))
    passed, failures, skips = 0, [], []
    for preset in presets:
        counts = preset_counts(folder, preset, permitted)
        print(f"{preset}: {counts[0]} passed, {len(counts[1])} failed, "
              f"{len(counts[2])} skipped")
        passed += counts[0]
        failures += counts[1]
        skips += counts[2]
    for preset in sorted(set(built) - set(presets)):
        failures.append(f"{preset}: left no result")
    if passed == 0 and not failures:
        failures.append("no test ran")
    for reason in skips:
        print(f"skipped {reason}")
    for name in sorted(set(failures)):
        print(f"failed {name}")
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
