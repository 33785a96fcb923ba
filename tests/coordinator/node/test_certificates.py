"""A node's certificates: what is refused at the start, and what happens when files change."""

import asyncio
import shutil
import socket
import ssl
from pathlib import Path

import grpc
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from musterd.coordinator.api.server import Health, listen, make_server
from musterd.coordinator.node.authority import Authority, AuthorityError
from musterd.coordinator.node.certificates import Certificates
from musterd.coordinator.node.config import ConfigError, load_settings
from musterd.raft.identity import new_identity
from tests.certificates import key_pem, of_unknown_version, signed, unknown_names

PATIENCE_S = 20


@pytest.fixture
def authority(tmp_path):
    """An authority of cluster "c", with node 0's folder."""
    made = Authority.create(tmp_path / "certs", "c")
    made.node(0, ["localhost", "127.0.0.1"])
    return made


def certificates(folder, **flags):
    """What node 0 of "c" reads of a folder of `muster cert node`."""
    settings = load_settings(None, {"data_dir": "/d", "tls_dir": folder} | flags)
    return Certificates(settings, new_identity("c", 0, 1, [0, 1, 2]))


def folder_of(authority, node=0):
    return authority._folder / f"node-{node}"


def test_a_folder_gives_both_ports_their_files(authority):
    """A file that is given by itself has precedence."""
    folder = folder_of(authority)
    settings = load_settings(None, {"data_dir": "/d", "tls_dir": folder, "tls_ca": "/other"})
    assert settings.peer_cert == settings.tls_cert == folder / "cert.pem"
    assert settings.tls_ca == Path("/other")
    assert settings.peer_tls_mode == "require"
    assert set(certificates(folder).loaded.valid_until) == {"clients", "peers"}


@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_tls_between_nodes_needs_files(mode):
    """Before anything starts."""
    with pytest.raises(ConfigError, match="needs peer_cert"):
        load_settings(None, {"data_dir": "/d", "peer_tls": mode})


def test_a_peer_port_that_may_be_plain_is_not_exposed_by_tls(authority):
    """`require` opens it beyond loopback, `prefer` does not."""
    flags = {"data_dir": "/d", "tls_dir": folder_of(authority), "peer_listen": "10.0.0.1:7170"}
    assert load_settings(None, flags).peer_listen == "10.0.0.1:7170"
    with pytest.raises(ConfigError, match="not loopback"):
        load_settings(None, flags | {"peer_tls": "prefer"})


def test_a_certificate_of_another_node_or_cluster_is_refused_at_the_start(authority, tmp_path):
    """The other nodes would refuse it later."""
    with pytest.raises(ConfigError, match="lack this node's, muster://c/node/0"):
        certificates(authority.node(1, ["localhost"]).folder)
    other = Authority.create(tmp_path / "other", "d")
    with pytest.raises(ConfigError, match="lack this node's"):
        certificates(other.node(0, ["localhost"]).folder)


def test_at_client_ports_a_node_is_known_by_a_certificate_that_names_it_alone(authority):
    """Where all nodes have one, which names another, they need the admin secret."""
    own = folder_of(authority)
    assert certificates(own).shows_node
    other = authority.node(1, ["localhost"]).folder
    files = {"tls_cert": other / "cert.pem", "tls_key": other / "key.pem"}
    assert not certificates(own, **files).shows_node


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(authority):
    """On either port."""
    folder = folder_of(authority)
    (folder / "key.pem").write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    with pytest.raises(ConfigError, match="passphrase"):
        certificates(folder)
    with pytest.raises(ConfigError, match="passphrase"):
        certificates(folder, peer_tls="off")


def test_files_that_change_are_read_once_and_bad_ones_leave_those_of_before(authority):
    """A key that does not belong to the certificate is such a one."""
    folder = folder_of(authority)
    held = certificates(folder)
    before = held.loaded
    assert held.look() is None
    (folder / "key.pem").write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1())))
    assert held.look() is None
    assert held.loaded is before
    authority.renew(folder, days=5)
    loaded = held.look()
    assert loaded.valid_until["peers"] < before.valid_until["peers"]
    held.use(loaded)
    assert held.peers.contexts is loaded.peers
    assert held.look() is None


def test_a_key_that_can_be_read_only_later_is_read_then(authority, monkeypatch):
    """Its time, size and inode stay as they were; the line of the log comes once."""
    folder = folder_of(authority)
    held = certificates(folder)
    authority.renew(folder, days=5)
    opened = Path.open

    def refusing(path, *given, **more):
        if path.name == "key.pem":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **more)

    with monkeypatch.context() as context, structlog.testing.capture_logs() as lines:
        context.setattr(Path, "open", refusing)
        assert held.look() is None
        assert held.look() is None
    assert len(lines) == 1
    assert held.look() is not None


def test_a_certificate_with_a_name_of_an_unknown_kind_is_refused_and_ends_no_running_node(
    authority, tmp_path
):
    """At the start with what to do; later those of before stay."""
    folder = folder_of(authority)
    held = certificates(folder)
    before = held.loaded
    made = signed(authority, tmp_path / "made", (), names=unknown_names())
    for file in (made.cert, made.key):
        shutil.copy(file, folder / file.name)
    assert held.look() is None
    assert held.loaded is before
    with pytest.raises(ConfigError, match="certificates"):
        certificates(folder)


def test_a_certificate_of_an_unknown_version_is_refused_and_ends_no_running_node(authority):
    """OpenSSL takes it; what reads its names does not."""
    folder = folder_of(authority)
    held = certificates(folder)
    before = held.loaded
    file = folder / "cert.pem"
    file.write_bytes(of_unknown_version(file.read_bytes()))
    assert held.look() is None
    assert held.loaded is before
    with pytest.raises(ConfigError, match="5 is not a valid X509 version"):
        certificates(folder)


def test_files_behind_links_that_are_turned_are_read_anew(authority, tmp_path):
    """As Kubernetes changes them: a link to a folder becomes one to another."""
    folder = folder_of(authority)
    shutil.copytree(folder, tmp_path / "v1")
    authority.renew(folder)
    shutil.copytree(folder, tmp_path / "v2")
    link = tmp_path / "now"
    link.symlink_to(tmp_path / "v1")
    held = certificates(link)
    (tmp_path / "later").symlink_to(tmp_path / "v2")
    (tmp_path / "later").replace(link)
    assert held.look() is not None


def shown(port, folder):
    """The certificate that a client port shows now; the client shows its own."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.getpeercert(True)


def test_a_client_port_shows_new_certificates_and_cuts_no_call(authority):
    """A call that is under way goes on; who connects after that gets the new one."""
    folder = folder_of(authority)
    channel_files = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]

    async def scenario():
        held = certificates(folder)
        server = make_server()
        health = Health(server, "own")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        listen(server, f"127.0.0.1:{port}", held.server_credentials())
        await server.start()
        await health.start()
        credentials = grpc.ssl_channel_credentials(*channel_files)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            stub = grpc_health(channel)
            watch = stub.Watch(request("muster.ready"))
            async with asyncio.timeout(PATIENCE_S):
                first = await watch.read()
                before = await asyncio.to_thread(shown, port, folder)
                assert before == await asyncio.to_thread(shown, port, folder)
                authority.renew(folder)
                held.use(held.look())
                assert before != await asyncio.to_thread(shown, port, folder)
                await health.set_ready(ready=True)
                assert await watch.read() != first, "the call that was under way"
                watch.cancel()
        await server.stop(0)

    asyncio.run(scenario())


def grpc_health(channel):
    from grpc_health.v1 import health_pb2_grpc  # noqa: PLC0415

    return health_pb2_grpc.HealthStub(channel)


def request(service):
    from grpc_health.v1 import health_pb2  # noqa: PLC0415

    return health_pb2.HealthCheckRequest(service=service)


def test_an_authority_keeps_its_folder_to_itself_and_is_made_once(authority, tmp_path):
    """Keys are readable by their owner alone, and no authority takes another's place."""
    for key in (tmp_path / "certs" / "ca.key", folder_of(authority) / "key.pem"):
        assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AuthorityError, match="has an authority already"):
        Authority.create(tmp_path / "certs", "c")
    assert Authority.read(tmp_path / "certs").cluster_id == "c"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "\N{SNOWMAN}", "a" * 65, "../x"])
def test_a_client_s_name_is_a_plain_word(authority, name):
    """It becomes a folder and a part of a name."""
    with pytest.raises(AuthorityError, match="letters, digits"):
        authority.client(name)


@pytest.mark.parametrize("name", ["anonymous", "operator"])
def test_a_client_has_no_name_that_muster_gives(authority, name):
    """Nodes would take the certificate for nobody's."""
    with pytest.raises(AuthorityError, match="a name that muster gives"):
        authority.client(name)


def test_what_is_of_another_authority_s_cluster_is_not_renewed(authority, tmp_path):
    """Its names would be signed as they are."""
    signed(authority, tmp_path / "foreign", [b"muster://other/node/0"])
    with pytest.raises(AuthorityError, match="of another cluster"):
        authority.renew(tmp_path / "foreign")
