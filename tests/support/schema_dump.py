"""The schema as pg_dump writes it, without what differs from run to run. `python -m tests.support.schema_dump` rewrites
docs/schema.sql."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from horsies.embedded import find_binaries

DUMP = Path(__file__).parents[2] / "docs" / "schema.sql"
MAJOR = 18
_HEAD = "-- The schema after all migrations, as pg_dump writes it. Made by `make schema`; a test compares it.\n\n"
_NOISE = re.compile(
    r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*|(CREATE|COMMENT ON) SCHEMA public.*)\n",
    re.MULTILINE,
)


def dump(database_url: str) -> str:
    pg_dump = find_binaries(MAJOR).bindir / "pg_dump"
    options = ["--schema-only", "--no-owner", "--no-privileges", "--schema=public", "--dbname", database_url]
    done = subprocess.run([pg_dump, *options], capture_output=True, text=True, check=True)
    text = _NOISE.sub("", done.stdout)
    return _HEAD + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def main() -> None:
    from tests.support.cluster import CLUSTER_FOLDER, Cluster

    with tempfile.TemporaryDirectory(prefix="horsies-schema-") as folder:
        Path(folder).chmod(0o755)
        os.environ[CLUSTER_FOLDER] = folder
        with Cluster.in_this_run() as cluster, cluster.database(migrated=True) as url:
            DUMP.write_text(dump(url))
    sys.stderr.write(f"wrote {DUMP.name}\n")


if __name__ == "__main__":
    main()
