// Copies the files that pages load into dist, and the licences of their packages into
// dist/NOTICES.txt.
import {copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';

const FILES = {
  '@picocss/pico': ['css/pico.min.css', 'LICENSE.md'],
  uplot: ['dist/uPlot.iife.min.js', 'dist/uPlot.min.css', 'LICENSE'],
};

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, 'dist');
rmSync(dist, {recursive: true, force: true});
mkdirSync(dist);

const notices = [];
for (const [name, files] of Object.entries(FILES)) {
  const directory = join(here, 'node_modules', name);
  const {version, license} = JSON.parse(readFileSync(join(directory, 'package.json'), 'utf8'));
  const text = readFileSync(join(directory, files.pop()), 'utf8').trim();
  for (const file of files) copyFileSync(join(directory, file), join(dist, file.split('/').pop()));
  notices.push(`${name} ${version} (${license})\n\n${text}\n`);
}
writeFileSync(join(dist, 'NOTICES.txt'), notices.join(`\n${'-'.repeat(80)}\n\n`));
