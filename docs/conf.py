"""Sphinx settings of the documentation site, and the two references that are made from the code.

The source folder is the root of the repository, so that links between pages work in the repository and on the site.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import horsies

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "horsies"
release = version = horsies.__version__
html_title = f"horsies {release}"
language = "en"

root_doc = "docs/index"
include_patterns = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "bench/RESULTS.md",
    "docs/*.md",
    "docs/adr/*.md",
    "docs/recipes/*.md",
]
exclude_patterns = [".*", "build", "dist", "horsies_ops", "requirements", "tests", "tui", "worker"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # examples contain … and prompts

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "start.html"}
# Colours of the pictures. Only fonts of the reader's system: the site loads nothing from other hosts.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#7c4a03", "color-brand-content": "#8a5200"},
    "dark_css_variables": {"color-brand-primary": "#e8b04b", "color-brand-content": "#e8b04b"},
}

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_use_legacy_class_based = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 88
default_role = "code"

PACKAGES: Final = ("horsies", "horsies.testing", "horsies_ops")
SECTIONS: Final = {
    "horsies.app": "Apps and tasks",
    "horsies.client": "Apps and tasks",
    "horsies.client.workflow": "Workflows",
    "horsies.model.workflow": "Workflows",
    "horsies.model.schedule": "Schedules",
    "horsies.model.settings": "Settings",
    "horsies.model.settings.schedule": "Schedules",
    "horsies.model.recovery": "Recovery",
    "horsies.model.retry": "Retries and recovery hooks",
    "horsies.errors": "Errors",
    "horsies.model": "Values and results",
    "horsies.registry": "Values and results",
    "horsies.testing": "Testing: horsies.testing",
    "horsies_ops": "Operations: horsies_ops",
}
"""Section of the API reference by the module that defines a name; the longest match counts."""


def api_reference() -> str:
    """Return the public names of all packages as autodoc directives, by section."""
    sections: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__, key=str.lower):
            if not name.startswith("__"):
                sections[_section(package, getattr(module, name))].append(
                    _directive(package, name, getattr(module, name))
                )
    titles = dict.fromkeys(SECTIONS.values())
    return "\n".join(f"## {title}\n\n" + "\n".join(sections[title]) for title in titles if sections[title])


def _section(package: str, value: Any) -> str:
    home = getattr(value, "__module__", None) or ""
    if package != "horsies" or not home.startswith("horsies"):
        home = "horsies.model" if package == "horsies" else package
    while home not in SECTIONS:
        home = home.rpartition(".")[0]
    return SECTIONS[home]


def _directive(package: str, name: str, value: Any) -> str:
    kind = "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "data"
    options = {"class": "   :members:\n", "data": "   :no-value:\n", "function": ""}[kind]
    return f"```{{eval-rst}}\n.. auto{kind}:: {package}.{name}\n{options}```\n"


def cli_reference() -> str:
    """Return the help of each command, in the order of `horsies --help`."""
    from horsies_ops.cli import main, options

    parts = [_command("##", "horsies", main.get_command(main.app))]
    for name in options.COMMANDS:
        command: Any = main.load_command(name)
        parts.append(_command("##", f"horsies {name}", command))
        for each, subcommand in getattr(command, "commands", {}).items():
            parts.append(_command("###", f"horsies {name} {each}", subcommand))
    return "\n".join(parts)


def _command(level: str, path: str, command: Any) -> str:
    import typer

    context = typer.Context(command, info_name=path, terminal_width=78)
    return f"{level} {path}\n\n```text\n{command.get_help(context)}\n```\n"


REFERENCES: Final = {"docs/api": api_reference, "docs/cli": cli_reference}


def add_reference(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put a reference at the end of its page."""
    if page in REFERENCES:
        source[0] += "\n" + REFERENCES[page]()


def plain_docstring(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Escape reStructuredText in docstrings, which are plain text with `code`; a constant has only that of its type."""
    lines[:] = [] if what == "data" else [_escaped(line) for line in lines]


def _escaped(line: str) -> str:
    return "`".join(
        part.replace("\\", "\\\\") if is_code else re.sub(r"([\\*|_])", r"\\\1", part)
        for is_code, part in _alternating(line.replace("``", "`").split("`"))
    )


def _alternating(parts: list[str]) -> Iterator[tuple[bool, str]]:
    return ((index % 2 == 1, part) for index, part in enumerate(parts))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_reference)
    app.connect("autodoc-process-docstring", plain_docstring)
