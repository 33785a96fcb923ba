"""Rules and tokens of a scripted cluster, as shard 0 keeps them."""

from muster.v1 import access_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode

MADE_WALL_MS = 1_795_273_591_042
DAY_MS = 24 * 3_600_000


class AccessStore:
    """Answers the RPCs of `Access`. `no` makes a status that refuses."""

    def __init__(self, no):
        self.no = no
        self.version = 7
        self.rules = [
            pb.AclRule(principal="ann", operation=1, resource=1, pattern=2, name="billing-"),
            pb.AclRule(principal="bob", operation=3, resource=2, pattern=1, name="orders"),
            pb.AclRule(
                principal="bob", operation=2, resource=1, pattern=1, name="audit", deny=True
            ),
        ]
        scope = pb.TokenScope(operation=3, resource=1, pattern=2)
        self.tokens = {
            one.token_id: one
            for one in (
                pb.Token(token_id="0" * 15 + "1", principal="ann", created_wall_ms=MADE_WALL_MS),
                pb.Token(
                    token_id="0" * 15 + "2",
                    principal="bob",
                    created_wall_ms=MADE_WALL_MS,
                    expires_wall_ms=MADE_WALL_MS + 90 * DAY_MS,
                    scopes=[scope],
                ),
            )
        }

    def rpcs(self):
        """Each RPC's name, with what answers it."""
        return {
            "DescribeAcls": self.describe,
            "AlterAcls": self.alter,
            "TestAccess": self.test,
            "CreateToken": self.create,
            "ListTokens": self.list_tokens,
            "RevokeToken": self.revoke,
        }

    def describe(self, _request):
        return pb.DescribeAclsResponse(rules=self.rules, access_version=self.version)

    def alter(self, request):
        before = list(self.rules)
        rules = [one for one in before if one not in request.removed]
        rules += [one for one in request.added if one not in rules]
        if not rules and not request.opens:
            text = "No rule would be left, and everybody could do everything: say `opens`."
            return pb.AlterAclsResponse(status=self.no(ErrorCode.INVALID_REQUEST, text))
        self.rules = rules
        self.version += rules != before
        return pb.AlterAclsResponse(changed=rules != before, access_version=self.version)

    def test(self, request):
        found = any(one.principal == request.principal and not one.deny for one in self.rules)
        reason = "1 rules allow it, and none denies it." if found else "No rule allows it."
        return pb.TestAccessResponse(allowed=found, reason=reason)

    def create(self, request):
        token = pb.Token(
            token_id="0" * 15 + "3",
            principal=request.principal,
            created_wall_ms=MADE_WALL_MS,
            expires_wall_ms=request.expires_wall_ms,
            scopes=request.scopes,
        )
        self.tokens[token.token_id] = token
        self.version += 1
        return pb.CreateTokenResponse(
            token_id=token.token_id, token="made-for-this-test", access_version=self.version
        )

    def list_tokens(self, _request):
        return pb.ListTokensResponse(tokens=self.tokens.values(), access_version=self.version)

    def revoke(self, request):
        if len(request.token_id) > 216:
            status = self.no(ErrorCode.INVALID_REQUEST, "A token's id has 16 hex digits.")
            return pb.RevokeTokenResponse(status=status)
        self.version += self.tokens.pop(request.token_id, None) is not None
        return pb.RevokeTokenResponse(access_version=self.version)
