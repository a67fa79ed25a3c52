"""Colours as others see them, and how far apart two of them are.

Deficient vision is simulated with the matrices of Machado, Oliveira and Fernandes, "A Physiologically-based Model for
Simulation of Color Vision Deficiency" (IEEE TVCG 15(6), 2009), severity 1.0, which apply to linear RGB. Distance is the
Euclidean one in CIE L*a*b* under D65 (delta E of 1976): about 2.3 is a just noticeable difference.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.contrast import linear, rgb

Vision = str

MACHADO: Final[dict[Vision, NDArray[np.float64]]] = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
_XYZ: Final = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
_WHITE: Final = _XYZ @ np.ones(3)


def lab(colour: str, vision: Vision = "normal") -> NDArray[np.float64]:
    light = np.clip(MACHADO[vision] @ np.array([linear(part) for part in rgb(colour)]), 0.0, 1.0)
    ratio = (_XYZ @ light) / _WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(one: str, two: str, vision: Vision = "normal") -> float:
    return float(np.linalg.norm(lab(one, vision) - lab(two, vision)))
