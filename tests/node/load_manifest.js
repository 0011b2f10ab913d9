// Reads a manifest with Malloy's own loader; prints the entries it understood.
const fs = require('fs');
const {Manifest} = require('@malloydata/malloy');

const manifest = new Manifest();
manifest.loadText(fs.readFileSync(process.argv[2], 'utf8'));
console.log(JSON.stringify(manifest.buildManifest));
