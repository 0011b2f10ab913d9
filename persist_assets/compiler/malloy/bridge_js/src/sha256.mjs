// What Malloy's compiler takes from @noble/hashes, by Node's own means: digests of long SQL took a
// fifth of a compilation.
import {createHash} from 'node:crypto';

export const sha256 = bytes => createHash('sha256').update(bytes).digest();
