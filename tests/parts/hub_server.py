"""A stand-in for the Hugging Face Hub on this machine, and the fixture `hub_server`."""

import base64
import hashlib
import json
import re

import pytest
import yaml
from huggingface_hub import constants

from rlhf_dialog.data import hub
from tests.parts.servers import serving

TOKEN = "hf_" + "a1B2" * 9
USER = "ada"


class Repo:
    """`commits` are (sha, {path: content}); the first is what the Hub makes."""

    def __init__(self, private: bool = False):
        self.private, self.commits = private, [("0" * 40, {".gitattributes": b"*.safetensors lfs"})]

    @property
    def sha(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1]

    def commit(self, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits.append((sha, files))
        return sha


class FakeHub:
    """Repositories in memory. `fails[kind]` is a status or `drop`, for the next requests of that kind (see `KINDS`)."""

    KINDS = (
        ("whoami", r"/api/whoami-v2"),
        ("create", r"/api/repos/create"),
        ("validate", r"/api/validate-yaml"),
        ("preupload", r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/main"),
        ("commit", r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/main"),
        ("tree", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>\w+)"),
        ("info", r"/api/models/(?P<repo>[^/]+/[^/]+?)(?:/revision/\w+)?"),
        ("batch", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch"),
        ("blob", r"/lfs/(?P<oid>\w+)"),
        ("resolve", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>\w+)/(?P<path>.+)"),
        ("root", r"/"),
    )

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.role, self.fails, self.requests = "write", {}, []

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.requests]

    def answer(self, handler, body: bytes) -> None:
        path = handler.path.split("?")[0]
        kind, match = next((kind, m) for kind, form in self.KINDS if (m := re.fullmatch(form, path)))
        self.requests.append((kind, handler.headers.get("authorization")))
        failure = self.fails.get(kind)
        if failure == "drop":
            handler.connection.close()
            return
        if failure:
            self._send(handler, failure, {"error": f"failed for {handler.headers.get('authorization')}"})
            return
        if kind not in ("root", "blob") and handler.headers.get("authorization") != f"Bearer {TOKEN}":
            self._send(handler, 401, {"error": "Invalid username or password."})
            return
        repo = match.groupdict().get("repo")
        if repo and repo not in self.repos:
            self._send(handler, 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return
        getattr(self, f"_{kind}")(handler, body, **match.groupdict())

    @staticmethod
    def _send(handler, status: int, content, headers: dict[str, str] | None = None) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)

    def _root(self, handler, body):
        self._send(handler, 200, b"")

    def _whoami(self, handler, body):
        self._send(handler, 200, {"name": USER, "type": "user", "auth": {"accessToken": {"role": self.role}}})

    def _create(self, handler, body):
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        if not name.startswith(f"{USER}/"):
            self._send(handler, 403, {"error": f"You don't have the rights to create a model under {name}"})
            return
        assert name not in self.repos
        self.repos[name] = Repo(wanted.get("visibility") == "private")
        self._send(handler, 200, {"url": f"{self.url}/{name}", "name": name})

    def _validate(self, handler, body):
        header = json.loads(body)["content"].split("---")[1]
        assert yaml.safe_load(header)["license"]
        self._send(handler, 200, {"errors": [], "warnings": []})

    def _preupload(self, handler, body, repo):
        files = []
        for path in (one["path"] for one in json.loads(body)["files"]):
            mode = "lfs" if path.endswith(".safetensors") else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None})
        self._send(handler, 200, {"files": files})

    def _batch(self, handler, body, repo):
        objects = json.loads(body)["objects"]
        for one in objects:
            if one["oid"] not in self.blobs:
                one["actions"] = {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}
        self._send(handler, 200, {"transfer": "basic", "objects": objects})

    def _blob(self, handler, body, oid):
        assert hashlib.sha256(body).hexdigest() == oid
        self.blobs[oid] = body
        self._send(handler, 200, b"")

    def _commit(self, handler, body, repo):
        lines = [json.loads(line) for line in body.splitlines()]
        files = dict(self.repos[repo].files)
        if (lines[0]["value"].get("parentCommit") or self.repos[repo].sha) != self.repos[repo].sha:
            self._send(handler, 412, {"error": "A commit has happened since."})
            return
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
            else:
                assert line["key"] == "deletedFile"
                del files[value["path"]]
        sha = self.repos[repo].commit(files)
        self._send(handler, 200, {"commitUrl": f"{self.url}/{repo}/commit/{sha}", "commitOid": sha})

    def _info(self, handler, body, repo):
        found = self.repos[repo]
        card = found.files.get("README.md", b"").decode().split("---")
        about = {"id": repo, "sha": found.sha, "private": found.private, "tags": []}
        if len(card) > 2:
            about["cardData"] = yaml.safe_load(card[1])
        self._send(handler, 200, {**about, "siblings": [{"rfilename": path} for path in found.files]})

    def _tree(self, handler, body, repo, revision):
        files = dict(self.repos[repo].commits)[revision]
        rows = [
            {"type": "file", "path": path, "size": len(x), "oid": hashlib.sha1(x).hexdigest()}
            for path, x in files.items()
        ]
        self._send(handler, 200, rows)

    def _resolve(self, handler, body, repo, revision, path):
        content = dict(self.repos[repo].commits)[revision][path]
        tag = hashlib.sha1(content).hexdigest()
        self._send(handler, 200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": revision})


@pytest.fixture
def hub_server(monkeypatch, tmp_path):
    """A running FakeHub in the place of the Hub, with an own cache, and TOKEN in the environment."""
    fake = FakeHub()
    with serving(lambda _, body, handler: fake.answer(handler, body)) as server:
        fake.url = f"http://127.0.0.1:{server.http.server_port}"
        for name, value in {"ENDPOINT": fake.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        hub.hub_reachable.cache_clear()
        yield fake
        hub.hub_reachable.cache_clear()
