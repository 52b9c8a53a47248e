"""`einc completion`: what a shell needs to complete commands, options, machines and models."""

from __future__ import annotations

from pathlib import Path

import click

from einc.errors import UsageError
from einc_runtime import environment
from einc_runtime.cli import output
from einc_runtime.cli.base import command

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    "einc completion --install",
    "einc completion zsh > _einc",
    short_help="Complete commands, options and names in a shell.",
)
@click.argument("shell", metavar="[bash|zsh|fish]", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it to where the shell looks for it, for this user.")
def completion_command(shell: str | None, install: bool) -> None:
    """Print the completion of einc for a shell, by default the one that you use.

    Shells complete commands, options, and the names of machines and models.
    """
    from click.shell_completion import get_completion_class

    from einc.cli.root import root

    chosen = shell or Path(environment.read(environment.SHELL) or "").name
    if chosen not in SHELLS:
        raise UsageError("the shell is not known", hint=f"name it: einc completion {'|'.join(SHELLS)}")
    completion = get_completion_class(chosen)
    assert completion is not None
    script = completion(root, {}, "einc", environment.COMPLETIONS[0]).source()
    if not install:
        output.say(script.rstrip())
        return
    path, advice = _locate_completion(chosen)
    path.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(str(path), script)
    output.say(f"{path}: the completion for {chosen}; {advice}")


def _locate_completion(shell: str) -> tuple[Path, str]:
    """Where a shell reads completions of this user, and what the user has to do then."""
    home = Path.home()
    if shell == "bash":
        data = Path(environment.read(environment.DATA_HOME) or home / ".local/share")
        return data / "bash-completion/completions/einc", "it is read by new shells that have bash-completion"
    if shell == "fish":
        config = Path(environment.read(environment.CONFIG_HOME) or home / ".config")
        return config / "fish/completions/einc.fish", "it is read by new shells"
    folder = Path(environment.read(environment.ZSH_HOME) or home) / ".zfunc"
    return folder / "_einc", f"in .zshrc, before compinit, write: fpath+=({folder})"
