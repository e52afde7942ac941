#!/bin/sh
# A database of its own, set up and shown, and gone again at the end. `make demo` runs it.
set -eu

folder=$(mktemp -d)
chmod 755 "$folder" # as root the server runs as another user, who must be able to enter
export HORSIES_BROKER__DATABASE_URL="embedded://$folder/embedded"

leave() {
    horsies db stop --force
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 130' INT TERM

horsies db start
horsies db migrate
echo
horsies db status
echo
