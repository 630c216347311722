"""The official Python client against a running landfall: KUBECONFIG says where.

Each function is one story; all run, and the exit code says whether all were true.
"""

import json
import sys
import threading
import traceback

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.rest import ApiException

config.load_kube_config()
core = client.CoreV1Api()
apps = client.AppsV1Api()
NS = "python"


def fails(code, reason, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ApiException as error:
        body = json.loads(error.body)
        assert error.status == code, (error.status, error.body)
        assert body["kind"] == "Status" and body["reason"] == reason, error.body
        return body
    raise AssertionError(f"should fail with {code} {reason}")


def pod(name, **spec):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": name}),
        spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="nginx")], **spec),
    )


def deployment(name):
    labels = {"app": name}
    return client.V1Deployment(
        metadata=client.V1ObjectMeta(name=name, labels=labels),
        spec=client.V1DeploymentSpec(
            replicas=2,
            selector=client.V1LabelSelector(match_labels=labels),
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(labels=labels),
                spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="nginx")]),
            ),
        ),
    )


def bind(name):
    target = client.V1ObjectReference(api_version="v1", kind="Node", name="nowhere")
    body = client.V1Binding(metadata=client.V1ObjectMeta(name=name), target=target)
    core.create_namespaced_pod_binding(name, NS, body, _preload_content=False)


def creates_gets_lists():
    made = core.create_namespaced_pod(NS, pod("a"))
    assert made.metadata.uid and made.status.phase == "Pending", made
    got = core.read_namespaced_pod("a", NS)
    assert got.spec.termination_grace_period_seconds == 30
    assert got.metadata.creation_timestamp.tzinfo is not None
    assert [p.metadata.name for p in core.list_namespaced_pod(NS).items] == ["a"]
    assert core.list_pod_for_all_namespaces(label_selector="app=a").items[0].metadata.name == "a"
    assert core.list_namespaced_pod(NS, field_selector="metadata.name=b").items == []
    core.delete_namespaced_pod("a", NS)


def lists_in_pieces():
    for i in range(7):
        core.create_namespaced_config_map(
            NS, client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"c{i}", labels={"many": "x"}))
        )
    seen, token = [], None
    while True:
        page = core.list_namespaced_config_map(NS, label_selector="many=x", limit=3, _continue=token)
        seen += [c.metadata.name for c in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert seen == [f"c{i}" for i in range(7)], seen
    core.delete_collection_namespaced_config_map(NS, label_selector="many=x")
    assert core.list_namespaced_config_map(NS, label_selector="many=x").items == []


def watches():
    version = core.list_namespaced_pod(NS).metadata.resource_version
    events, ready = [], threading.Event()

    def follow():
        stream = watch.Watch()
        for event in stream.stream(core.list_namespaced_pod, NS, resource_version=version, timeout_seconds=60):
            events.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                ready.set()
                stream.stop()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    core.create_namespaced_pod(NS, pod("w"))
    core.patch_namespaced_pod("w", NS, {"metadata": {"labels": {"x": "y"}}})
    core.delete_namespaced_pod("w", NS)
    assert ready.wait(30), events
    # A pod is marked before it goes, even if it has no time left.
    assert events == [("ADDED", "w"), ("MODIFIED", "w"), ("MODIFIED", "w"), ("DELETED", "w")], events


def patches():
    apps.create_namespaced_deployment(NS, deployment("d"))
    side = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "busybox"}]}}}}
    got = apps.patch_namespaced_deployment("d", NS, side)
    assert {c.name for c in got.spec.template.spec.containers} == {"c", "side"}, "strategic merges by name"
    got = apps.patch_namespaced_deployment("d", NS, [{"op": "replace", "path": "/spec/replicas", "value": 4}])
    assert got.spec.replicas == 4, "a list is a JSON patch"
    got = apps.patch_namespaced_deployment("d", NS, side, _content_type="application/merge-patch+json")
    assert [c.name for c in got.spec.template.spec.containers] == ["side"], "merge replaces lists"
    applied = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 6}}
    fails(409, "Conflict", apps.patch_namespaced_deployment, "d", NS, applied,
          field_manager="python", _content_type="application/apply-patch+yaml")
    got = apps.patch_namespaced_deployment("d", NS, applied, field_manager="python", force=True,
                                           _content_type="application/apply-patch+yaml")
    assert got.spec.replicas == 6
    assert any(m.manager == "python" and m.operation == "Apply" for m in got.metadata.managed_fields)


def scales():
    scale = apps.read_namespaced_deployment_scale("d", NS)
    assert scale.spec.replicas == 6
    scale.spec.replicas = 1
    apps.replace_namespaced_deployment_scale("d", NS, scale)
    assert apps.read_namespaced_deployment("d", NS).spec.replicas == 1
    apps.patch_namespaced_deployment_scale("d", NS, {"spec": {"replicas": 3}})
    assert apps.read_namespaced_deployment("d", NS).spec.replicas == 3
    apps.delete_namespaced_deployment("d", NS)


def replaces_and_conflicts():
    made = core.create_namespaced_config_map(NS, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="c"), data={"a": "1"}))
    made.data["a"] = "2"
    core.replace_namespaced_config_map("c", NS, made)
    body = fails(409, "Conflict", core.replace_namespaced_config_map, "c", NS, made)
    assert body["message"].startswith('Operation cannot be fulfilled on configmaps "c": the object has been modified')
    core.delete_namespaced_config_map("c", NS)


def deletes_gracefully():
    core.create_namespaced_pod(NS, pod("g", termination_grace_period_seconds=40))
    bind("g")
    assert core.read_namespaced_pod("g", NS).spec.node_name == "nowhere"
    going = core.delete_namespaced_pod("g", NS)
    assert going.metadata.deletion_grace_period_seconds == 40 and going.metadata.deletion_timestamp
    going = core.delete_namespaced_pod("g", NS, grace_period_seconds=5)
    assert going.metadata.deletion_grace_period_seconds == 5
    core.delete_namespaced_pod("g", NS, dry_run="All", grace_period_seconds=0)
    core.read_namespaced_pod("g", NS)
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"), grace_period_seconds=0)
    fails(409, "Conflict", core.delete_namespaced_pod, "g", NS, body=wrong)
    core.delete_namespaced_pod("g", NS, grace_period_seconds=0)
    fails(404, "NotFound", core.read_namespaced_pod, "g", NS)


def owners_wait_or_leave():
    for policy, finalizer in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]:
        name = policy.lower()
        apps.create_namespaced_deployment(NS, deployment(name))
        raw = apps.delete_namespaced_deployment(name, NS, propagation_policy=policy, _preload_content=False)
        assert json.loads(raw.data)["metadata"]["finalizers"] == [finalizer], raw.data


def evicts():
    core.create_namespaced_pod(NS, pod("e"))
    bind("e")
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="e"))
    core.create_namespaced_pod_eviction("e", NS, eviction)
    assert core.read_namespaced_pod("e", NS).metadata.deletion_timestamp
    core.delete_namespaced_pod("e", NS, grace_period_seconds=0)


def gets_errors():
    body = fails(404, "NotFound", core.read_namespaced_pod, "nope", NS)
    assert body["message"] == 'pods "nope" not found' and body["details"]["kind"] == "pods"
    core.create_namespaced_pod(NS, pod("twice"))
    body = fails(409, "AlreadyExists", core.create_namespaced_pod, NS, pod("twice"))
    assert body["message"] == 'pods "twice" already exists'
    body = fails(422, "Invalid", core.create_namespaced_pod, NS, pod("Bad_Name"))
    assert body["details"]["causes"][0]["field"] == "metadata.name", body
    core.delete_namespaced_pod("twice", NS)
    alice = client.ApiClient(header_name="Impersonate-User", header_value="alice")
    body = fails(403, "Forbidden", client.CoreV1Api(alice).list_namespaced_pod, NS)
    assert 'User "alice" cannot list resource "pods"' in body["message"]


def applies_files():
    documents = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
         "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}},
    ]
    utils.create_from_yaml(client.ApiClient(), yaml_objects=documents, namespace=NS)
    assert core.read_namespaced_service("s", NS).spec.cluster_ip.startswith("10.96.")
    core.delete_namespaced_service("s", NS)
    client.BatchV1Api().delete_namespaced_job("j", NS, propagation_policy="Background")


def discovers():
    found = dynamic.DynamicClient(client.ApiClient())
    resource = found.resources.get(api_version="v1", kind="ConfigMap")
    resource.create(body={"metadata": {"name": "dyn"}, "data": {"a": "b"}}, namespace=NS)
    resource.server_side_apply(
        body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dyn"}, "data": {"c": "d"}},
        namespace=NS, field_manager="dyn")
    got = resource.get(name="dyn", namespace=NS)
    assert dict(got.data) == {"a": "b", "c": "d"}, got.data
    resource.delete(name="dyn", namespace=NS)
    assert client.VersionApi().get_code().minor == "36"
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(
        resource_attributes=client.V1ResourceAttributes(verb="delete", resource="pods")))
    assert client.AuthorizationV1Api().create_self_subject_access_review(review).status.allowed


def main():
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NS)))
    core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name="nowhere")))
    stories = [creates_gets_lists, lists_in_pieces, watches, patches, scales, replaces_and_conflicts,
               deletes_gracefully, owners_wait_or_leave, evicts, gets_errors, applies_files, discovers]
    failed = 0
    for story in stories:
        try:
            story()
            print("true:", story.__name__)
        except Exception:
            failed += 1
            print("FALSE:", story.__name__)
            traceback.print_exc()
    sys.exit(1 if failed else 0)


main()
