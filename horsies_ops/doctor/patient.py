"""What the doctor looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.model.settings import AppConfig
    from horsies_ops.reads.reading import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A database that can be read, and the settings of this side."""

    reads: Reads
    settings: AppConfig
