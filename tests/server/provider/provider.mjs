// An OpenID Connect provider for tests: node provider.mjs '{"redirect_uris": [...]}'. It prints its address.
// People are called as they say they are; what it tells of each stands in PEOPLE.
import http from 'node:http';
import Provider from 'oidc-provider';

const PEOPLE = {
  ada: { email: 'ada@example.com', email_verified: true, groups: ['staff', 'keepers'] },
  ben: { email: 'ben@example.com', email_verified: true, groups: ['staff', 'team-a'] },
  eve: { email: 'ada@example.com', email_verified: false, groups: ['strangers'] },
};
const { client = {} } = JSON.parse(process.argv[2]);
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://localhost:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'tracelake',
      client_secret: 'a secret of the provider: & + %',
      redirect_uris: ['http://127.0.0.1/sign-in/callback'],
      application_type: 'native',
      id_token_signed_response_alg: 'RS256',
      ...client,
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['groups'] },
    conformIdTokenClaims: true,
    cookies: { keys: ['of tests'] },
    pkce: { required: () => true },
    findAccount: (_, id) => PEOPLE[id] && { accountId: id, claims: async () => ({ sub: id, ...PEOPLE[id] }) },
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
