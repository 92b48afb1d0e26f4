#!/bin/sh
# Bundles what the page uses of Apache ECharts into charts.js, with the licences of all that is in it.
set -eu
cd "$(dirname "$0")"
npm ci --ignore-scripts --no-audit --no-fund --silent
npx esbuild entry.js --bundle --minify --format=iife --global-name=echarts --charset=ascii --legal-comments=none --outfile=charts.js --log-level=warning
version() {
	node -p 'JSON.parse(fs.readFileSync(process.argv[1])).version' "node_modules/$1/package.json"
}
{
	echo "/*!"
	echo "Apache ECharts $(version echarts), Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0)"
	echo
	cat node_modules/echarts/NOTICE
	echo
	echo
	echo "It contains d3.js, BSD 3-Clause:"
	cat node_modules/echarts/licenses/LICENSE-d3
	echo
	echo "It uses zrender $(version zrender), BSD 3-Clause:"
	cat node_modules/zrender/LICENSE
	echo
	echo "and on tslib $(version tslib), 0BSD:"
	cat node_modules/tslib/LICENSE.txt
	echo "*/"
	cat charts.js
} | tr -d '\r' | expand -t 8 >charts.new
mv charts.new charts.js
