"""The part of the app that has to do with themes: which there are, which is on, and taking over files that change.

Files are looked at once a second in a thread: a home folder on a network that hangs must not hold up the picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from textual.app import App, ReturnType

from console.themes import ANSI_THEME, DEFAULT_THEME, Changes, ThemeFolders, fallback_variables
from console.widgets.paint import Paint

if TYPE_CHECKING:
    from textual.theme import Theme

LOOK_EVERY_S: Final = 1.0


class _Tells(Protocol):
    def tell(self, text: str, title: str = "", severity: Literal["information", "warning", "error"] = "information") -> None: ...


class Theming(App[ReturnType]):
    """What the console's app is built on."""

    _theme_files: ThemeFolders
    _chosen = False
    _inks: tuple[Theme, Paint] | None = None
    _watching: asyncio.Task[None] | None = None

    def begin_themes(self, folders: Iterable[Path] | None, wanted: str) -> None:
        """Called once the app is made: registers all themes and puts on the wanted one."""
        self._theme_files = ThemeFolders(folders)
        for theme in self._theme_files.themes:
            self.register_theme(theme)
        names = self.theme_names
        self._chosen = wanted in names
        self.theme = wanted if self._chosen else DEFAULT_THEME if DEFAULT_THEME in names else (names or ["textual-dark"])[0]

    @property
    def theme_names(self) -> list[str]:
        return [theme.name for theme in self._theme_files.themes]

    @property
    def theme_problems(self) -> list[str]:
        return self._theme_files.problems

    @property
    def inks(self) -> Paint:
        theme = self.current_theme
        if self._inks is None or self._inks[0] is not theme:
            # Not `theme_variables`: those are of the last style sheet, which follows a change of theme a moment later.
            self._inks = (theme, Paint(self.get_css_variables()))
        return self._inks[1]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return fallback_variables()

    def on_mount(self) -> None:  # besides the one of the app itself: Textual calls both
        few = self.console.color_system == "standard" and not self.is_headless
        if few and not self._chosen and self.theme == DEFAULT_THEME and ANSI_THEME in self.theme_names:
            self.theme = ANSI_THEME  # with 16 colours the dark shades of the others all turn black
        self._watching = asyncio.create_task(self._watch_files(), name="theme files")

    async def on_unmount(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            changes = await asyncio.to_thread(self._theme_files.changes)
            if changes is not None:
                self.take_over(changes)

    def take_over(self, changes: Changes) -> None:
        for theme in changes.themes:
            self.register_theme(theme)
        names = [theme.name for theme in changes.themes]
        told = list(changes.problems)
        if self.theme in changes.gone:
            told.append(f"the file of theme {self.theme} is gone")
            self.theme = DEFAULT_THEME if DEFAULT_THEME in names else names[0] if names else "textual-dark"
        elif self.theme in changes.renewed:
            self.mutate_reactive(App.theme)  # the same name, other colours: style sheets and drawings are made anew
        for name in changes.gone:
            self.unregister_theme(name)
        if told:
            cast(_Tells, self).tell("\n".join(told), "theme not used", "warning")

    def action_next_theme(self) -> None:
        names = self.theme_names
        if names:
            self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    def command_next_theme(self, name: str) -> None:
        if name in self.theme_names:
            self.theme = name
        else:
            message = f"no theme {name!r}; there are {', '.join(self.theme_names)}"
            cast(_Tells, self).tell(message, severity="warning")
