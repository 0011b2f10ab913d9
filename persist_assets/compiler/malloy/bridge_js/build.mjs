// Bundles the bridge and Malloy's compiler into dist/bridge.cjs, and the licences of all that is
// in it into dist/NOTICES.txt.
import {mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync} from 'node:fs';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import {build} from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, 'dist');
rmSync(dist, {recursive: true, force: true});
mkdirSync(dist);

const {metafile} = await build({
  absWorkingDir: here,
  entryPoints: ['src/main.mjs'],
  outfile: 'dist/bridge.cjs',
  bundle: true,
  platform: 'node',
  target: 'node20',
  format: 'cjs',
  minify: true,
  keepNames: true,
  alias: {'@noble/hashes/sha256': './src/sha256.mjs'},
  metafile: true,
  legalComments: 'none', // they are in NOTICES.txt, whole
});

const packages = new Set();
for (const path of Object.keys(metafile.inputs)) {
  const found = path.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const notices = [...packages].sort().map(path => {
  const {name, version, license} = JSON.parse(readFileSync(join(here, path, 'package.json')));
  if (!license) throw new Error(`${name} does not say its licence`);
  const file = readdirSync(join(here, path)).find(f => /^(licen[sc]e|copying)/i.test(f));
  const text = file
    ? readFileSync(join(here, path, file), 'utf8').trim()
    : `(The package holds no text of its licence, ${license}.)`;
  return `${name} ${version} (${license})\n\n${text}\n`;
});
const line = `\n${'-'.repeat(80)}\n\n`;
writeFileSync(
  join(dist, 'NOTICES.txt'),
  ['bridge.cjs contains these packages, under these licences.\n', ...notices].join(line)
);
