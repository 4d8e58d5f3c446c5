// An OpenID Connect provider for the tests: npm's oidc-provider, with two clients, any user, and one
// key. `node oidc_provider.mjs MODULE PORT KEY_ID REDIRECT_URL [CERTIFICATE KEY]`; with the two files
// it speaks TLS. Prints `ready` when it answers.
//
// - The client `farrier-console` signs browsers in. Users are whoever types a name; `ada` is in the
//   group `night-shift`.
// - The client `farrier-cli` gets access tokens for itself, for any resource, with that group.

import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import * as http from 'node:http';
import * as https from 'node:https';
import { pathToFileURL } from 'node:url';

const [module, port, keyId, redirectUrl, certificate, privateKeyFile] = process.argv.slice(2);
const scheme = certificate ? 'https' : 'http';
const { default: Provider } = await import(pathToFileURL(module));

// By way of PEM: Node.js can wait for itself for ever when it exports the key object that it has
// just generated, if the garbage collector runs in between (`node --gc-interval=50` shows it).
const { privateKey } = generateKeyPairSync('rsa', {
  modulusLength: 2048,
  publicKeyEncoding: { type: 'spki', format: 'pem' },
  privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
});
const jwk = createPrivateKey(privateKey).export({ format: 'jwk' });
const key = { ...jwk, kid: keyId, use: 'sig', alg: 'RS256' };

const provider = new Provider(`${scheme}://127.0.0.1:${port}`, {
  jwks: { keys: [key] },
  clients: [
    {
      client_id: 'farrier-console',
      client_secret: 'a secret: of/the+tests',
      application_type: 'native',
      redirect_uris: [redirectUrl],
      response_types: ['code'],
      grant_types: ['authorization_code'],
    },
    {
      client_id: 'farrier-cli',
      client_secret: 'cli-secret',
      redirect_uris: [],
      response_types: [],
      grant_types: ['client_credentials'],
    },
  ],
  claims: { openid: ['sub', 'groups'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['cookie-key-of-the-tests'] },
  pkce: { required: () => true },
  async findAccount(_ctx, id) {
    const groups = id === 'ada' ? ['night-shift'] : [];
    return { accountId: id, claims: async () => ({ sub: id, groups }) };
  },
  extraTokenClaims: () => ({ groups: ['night-shift'] }),
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_ctx, resource) => ({
        scope: '',
        audience: resource,
        // In seconds.
        accessTokenTTL: resource.endsWith('/short') ? 5 : 600,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
});

const server = certificate
  ? https.createServer(
      { cert: readFileSync(certificate), key: readFileSync(privateKeyFile) },
      provider.callback(),
    )
  : http.createServer(provider.callback());
server.listen(Number(port), '127.0.0.1', () => console.log('ready'));
