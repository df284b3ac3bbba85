#!/usr/bin/env python3
"""Fails when a page or a comment names a file that is not in the tree.

Checks, over the files that git tracks:

- links of Markdown pages: the target exists, and so does the heading (#anchor);
- paths and file names in `code quotes` of Markdown pages;
- names of Markdown pages in any source file;
- identifiers in `code quotes` of docs/glossary.md: the source has them;
- pages of docs/how-to: at most 1,200 words each;
- messages quoted by docs/how-to/troubleshooting.md: the programs have them;
- README.md: links every page below docs/.

CHANGELOG.md names files that are gone, too: only its links are checked.
"""

import argparse
import pathlib
import re
import subprocess
import sys

# A page that leads by commands is read in one go. Longer pages belong to
# docs/reference or docs/design.
HOW_TO_WORDS = 1200
SOURCES = (".h", ".cc", ".cu", ".py", ".sh", ".proto", ".cmake", ".txt", ".textproto")
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(
    r"[\w.{},*/-]*[\w*]\.(?:\{[\w,]+\}|h|cc|cu|py|sh|proto|textproto|md|json|txt|cmake)"
)
PAGE_NAME = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.md)\b")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:::\w+)*")
# Files that programs write or users bring, named by pages.
NOT_TRACKED = re.compile(
    r"(^|/)(gpu_check\.(json|md)|NAME\.json|result\.json|counters_\w+\.json"
    r"|profile\.textproto|FILE\.textproto|R\.json|models/ranker/.*|.*<.*)$"
)


def tracked_files(root):
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=root, capture_output=True, text=True, check=True,
        ).stdout.split("\n")  # fmt: skip
        # Untracked files count, too: a new page may name a new file before the
        # commit.
        names = [name for name in listed if name and (root / name).is_file()]
        if names:
            return names
    except (OSError, subprocess.CalledProcessError):
        pass
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and not {"build", ".venv", ".git"} & set(path.parts)
    ]


def anchors(text):
    """Anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.MULTILINE):
        # GitHub's rule: markup goes, letters become lower-case, signs other
        # than hyphens go, and blanks become hyphens.
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


class Tree:
    def __init__(self, root):
        self.root = root
        self.files = tracked_files(root)
        self.folders = {
            str(parent)
            for name in self.files
            for parent in pathlib.PurePosixPath(name).parents
        }
        self.tops = {name.split("/")[0] for name in self.files if "/" in name}
        # Every name by which a file may be called: each suffix of its path.
        self.suffixes = set()
        self.stems = set()
        for name in self.files:
            parts = name.split("/")
            for i in range(len(parts)):
                suffix = "/".join(parts[i:])
                self.suffixes.add(suffix)
                self.stems.add(suffix.rsplit(".", 1)[0])

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def has_file(self, name):
        """`name` is a path or its end; `a_*.h` and `a.{h,cc}` are patterns."""
        if not re.search(r"[*{]", name):
            return name in self.suffixes
        # `a_*.h` and `a.{h,cc}` become regular expressions, which re.escape()
        # has escaped.
        pattern = re.escape(name).replace(r"\*", r"[^/]*")
        pattern = re.sub(
            r"\\\{(.*?)\\\}", lambda m: f"({m[1].replace(',', '|')})", pattern
        )
        return any(re.fullmatch(pattern, suffix) for suffix in self.suffixes)

    def has_page(self, name):
        return name in self.suffixes

    def has_path(self, name):
        name = name.rstrip("/")
        return name in self.folders or name in self.suffixes or name in self.stems


def page_problems(tree, page):
    text = tree.read(page)
    folder = pathlib.PurePosixPath(page).parent
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        full = page
        # Relative to the page's folder, as a browser takes it. Without a path
        # the link is to a heading of the page itself.
        if path:
            parts = []
            for part in (folder / path).parts:
                if part == "..":
                    parts = parts[:-1]
                elif part != ".":
                    parts.append(part)
            full = "/".join(parts)
        if full not in tree.files and full not in tree.folders:
            yield f"link to {target}: there is no {full}"
        elif anchor and full.endswith(".md") and anchor not in anchors(tree.read(full)):
            yield f"link to {target}: {full} has no such heading"
    if page == "CHANGELOG.md":
        return
    for quote in QUOTE.findall(FENCE.sub("", text)):
        if NOT_TRACKED.search(quote) or quote.startswith(("build/", "/", "-")):
            continue
        if FILE_NAME.fullmatch(quote):
            if not tree.has_file(quote):
                yield f"`{quote}`: there is no such file"
        elif re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", quote) and "/" in quote:
            if quote.split("/")[0] in tree.tops and not tree.has_path(quote):
                yield f"`{quote}`: there is no such file or folder"


def glossary_problems(tree, page):
    words = set()
    for name in tree.files:
        if name.endswith(SOURCES):
            words.update(re.findall(r"\w+", tree.read(name)))
    seen = set()
    for line in tree.read(page).splitlines():
        if not line.startswith("| ") or line.startswith(("| term", "| ---")):
            continue
        term, _, where = [cell.strip() for cell in line.strip("|").split("|")]
        if term in seen:
            yield f"the term '{term}' is there twice"
        seen.add(term)
        for quote in QUOTE.findall(where):
            if IDENTIFIER.fullmatch(quote):
                for part in quote.split("::"):
                    if part not in words:
                        yield f"`{quote}`: the source has no {part}"


def source_problems(tree, name):
    for page in PAGE_NAME.findall(tree.read(name)):
        if not tree.has_page(page) and not NOT_TRACKED.search(page):
            yield f"{page}: there is no such page"


def length_problems(tree, page):
    words = len(tree.read(page).split())
    if words > HOW_TO_WORDS:
        yield f"{words} words; a how-to page has at most {HOW_TO_WORDS}"


def message_problems(tree, page):
    """First cells of the tables hold messages, with … for what varies."""
    literals = []
    for name in tree.files:
        if name.endswith((".h", ".cc")) and not name.startswith(("tests/", "bench/")):
            # Joins literals that the formatter has broken over lines.
            text = re.sub(r'"\s*\n\s*"', "", tree.read(name))
            literals += re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
    messages = "\n".join(literals).replace('\\"', '"')
    in_table = False
    for line in tree.read(page).splitlines():
        if not line.startswith("| message"):
            in_table = in_table and line.startswith("|")
        else:
            in_table = True
            continue
        if not in_table or line.startswith("| ---"):
            continue
        for quote in QUOTE.findall(line.split(" | ")[0]):
            for part in quote.split("…"):
                if part.strip() and part.strip() not in messages:
                    yield f"`{quote}`: no program has the message '{part.strip()}'"


def readme_problems(tree):
    """Pages below docs/ that README.md does not link, alone or by a folder
    that holds nothing but numbered pages (docs/decisions)."""
    linked = {link.partition("#")[0] for link in LINK.findall(tree.read("README.md"))}
    for name in sorted(tree.files):
        if re.fullmatch(r"docs/.*\.md", name) and name not in linked:
            folder, _, file = name.rpartition("/")
            if not (folder in linked and re.match(r"\d{4}-", file)):
                yield f"no link to {name}"


def problems(root):
    tree = Tree(root)
    for name in sorted(tree.files):
        found = []
        if name.endswith(".md"):
            found += page_problems(tree, name)
        if name == "README.md":
            found += readme_problems(tree)
        if name.startswith("docs/how-to/"):
            found += length_problems(tree, name)
        if name == "docs/how-to/troubleshooting.md":
            found += message_problems(tree, name)
        if name == "docs/glossary.md":
            found += glossary_problems(tree, name)
        if name.endswith(SOURCES) and "check_links" not in name:
            found += source_problems(tree, name)
        for problem in found:
            yield f"{name}: {problem}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1])  # fmt: skip
    found = list(problems(parser.parse_args().root))
    for problem in found:
        print(problem)
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
