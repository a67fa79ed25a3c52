"""Questions before acts. Cancel has the focus, esc cancels, and nothing happens without an explicit yes.

Whom a dialog is about (slot, incarnation) is captured when the key is pressed: the fleet may re-sort behind it, the
question does not change. Its figures go on (`tell_again`, once a second): minutes may pass before an answer. The dialogs
that need typing (rate, next attempt, stop) give the focus to their field; Enter there only moves on to the button or says
what is wrong, and the button stays off until the text is right.
"""

from console.screens.dialogs.base import Answer, ConfirmAct, Dialog, Fact, Facts
from console.screens.dialogs.choose import AskAttempt, AskChoice
from console.screens.dialogs.leave import AskOnQuit
from console.screens.dialogs.rate import AskRate, parse_qps
from console.screens.dialogs.remove import AskRemoval
from console.screens.dialogs.scale import AskNodes
from console.screens.dialogs.sending import Sending
from console.screens.dialogs.typed import TypeToConfirm

__all__ = [
    "Answer",
    "AskAttempt",
    "AskChoice",
    "AskNodes",
    "AskOnQuit",
    "AskRate",
    "AskRemoval",
    "ConfirmAct",
    "Dialog",
    "Fact",
    "Facts",
    "Sending",
    "TypeToConfirm",
    "parse_qps",
]
