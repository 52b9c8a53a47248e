"""What the site is made of: the pages of the repository, at their places, and the files that they link to."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "einc/README.md", "runtime/**/*.md")
LINK = re.compile(r"\]\(<?([^)#\s>]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Writes the names of pages in place of patterns such as `docs/decisions/*`."""
    config.nav = [_expand(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and what they link to."""
    pages = list_pages()
    for path in [*pages, *sorted({target for page in pages for target in list_targets(page)} - set(pages))]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def list_pages() -> list[Path]:
    """All pages of the repository."""
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def list_targets(page: Path) -> list[Path]:
    """The files of the repository that a page links to."""
    links = LINK.findall(page.read_text(encoding="utf-8"))
    paths = [(page.parent / link).resolve() for link in links if ":" not in link]
    return [path for path in paths if path.is_file() and path.is_relative_to(ROOT)]


def _expand(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {
            title: [name for part in value for name in _match(part)] if isinstance(value, list) else value
            for title, value in entry.items()
        }
    return entry


def _match(pattern: Any) -> list[Any]:
    """The pages that a pattern stands for, an overview first."""
    if "*" not in pattern:
        return [pattern]
    names = [path.relative_to(ROOT).as_posix() for path in list_pages()]
    return sorted(fnmatch.filter(names, pattern), key=lambda name: (not name.endswith("README.md"), name))
