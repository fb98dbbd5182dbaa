#!/usr/bin/env bash
# Makes dashboard.schema.json of the types of a Grafana release (npm package @grafana/schema, Apache-2.0).  Needs npm.
set -euo pipefail
cd "$(dirname "$0")"
release=13.2.3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --silent --no-save --prefix "$work" "@grafana/schema@$release" ts-json-schema-generator@2.9.0
raw="$work/node_modules/@grafana/schema/dist/types/raw"
mkdir "$work/types"
cp dashboard.ts "$work"
cp "$raw/dashboard/x/types.gen.d.ts" "$work/types/dashboard.d.ts"
for panel in bargauge heatmap stat statetimeline statushistory table text timeseries; do
    # every panel calls its types by the same names; a schema needs them apart
    sed -E "s/\b(Options|FieldConfig)\b/${panel^}\1/g" "$raw/composable/$panel/panelcfg/x/types.gen.d.ts" > "$work/types/$panel.d.ts"
done
cd "$work"
npx ts-json-schema-generator --path dashboard.ts --type EmuDashboard --no-type-check --jsDoc none --minify \
    --id "grafana-$release" > schema.json
cp schema.json "$OLDPWD/dashboard.schema.json"
