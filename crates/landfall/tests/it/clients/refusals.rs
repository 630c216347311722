//! Errors with the messages of Kubernetes.

use crate::harness::each_kubectl;

#[test]
fn missing_objects_are_not_found() {
    each_kubectl(|kubectl| {
        kubectl
            .fails("kubectl get po nope", r#"Error from server (NotFound): pods "nope" not found"#);
        kubectl.fails(
            "kubectl get deploy nope",
            r#"Error from server (NotFound): deployments.apps "nope" not found"#,
        );
        kubectl.fails(
            "kubectl create cm c --from-literal=a=b -n no-such",
            r#"namespaces "no-such" not found"#,
        );
        kubectl
            .fails("kubectl get nonsense", r#"the server doesn't have a resource type "nonsense""#);
        kubectl.fails(
            "kubectl get --raw /apis/no.such/v1",
            "the server could not find the requested resource",
        );
        kubectl.fails("kubectl logs nope", r#"pods "nope" not found"#);
    });
}

#[test]
fn a_second_object_of_the_same_name_is_rejected() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run p --image=nginx; kubectl get po p -o yaml > p.yaml");
        kubectl.fails(
            "kubectl run p --image=nginx",
            r#"Error from server (AlreadyExists): pods "p" already exists"#,
        );
        kubectl.fails("kubectl create ns $NS", "Error from server (AlreadyExists): namespaces");
    });
}

#[test]
fn requests_without_a_role_are_forbidden() {
    each_kubectl(|kubectl| {
        let ns = &kubectl.namespace;
        kubectl.fails(
            "kubectl get po --as=alice",
            &format!(r#"Error from server (Forbidden): pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "{ns}""#),
        );
        kubectl.fails(
            "kubectl delete po p --as=alice",
            &format!(r#"Error from server (Forbidden): pods "p" is forbidden: User "alice" cannot delete resource "pods" in API group "" in the namespace "{ns}""#),
        );
        kubectl.fails(
            "kubectl get nodes --as=alice",
            r#"nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope"#,
        );
        kubectl.fails(
            "kubectl create deployment d --image=nginx --as=system:serviceaccount:$NS:default",
            &format!(r#"deployments.apps is forbidden: User "system:serviceaccount:{ns}:default" cannot create resource "deployments" in API group "apps" in the namespace "{ns}""#),
        );
        // A user cannot grant rights that they do not have.
        kubectl.ok("kubectl create role giver --verb=create,get --resource=roles,rolebindings
            kubectl create rolebinding giver --role=giver --user=bob");
        kubectl.fails(
            "kubectl create role more --verb=delete --resource=secrets --as=bob",
            "is attempting to grant RBAC permissions not currently held",
        );
    });
}

#[test]
fn invalid_objects_are_rejected_with_the_field() {
    each_kubectl(|kubectl| {
        kubectl.fails("kubectl run Bad_Name --image=nginx", r#"The Pod "Bad_Name" is invalid"#);
        kubectl.fails("kubectl run Bad_Name --image=nginx", "metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of");
        kubectl.ok("kubectl create deployment d --image=nginx; kubectl run p --image=nginx");
        kubectl.fails("kubectl scale deploy d --replicas=-1", "--replicas=COUNT");
        kubectl.fails(
            r#"kubectl patch deploy d -p '{"spec":{"replicas":-1}}'"#,
            r#"The Deployment "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#,
        );
        kubectl.fails(
            r#"kubectl patch deploy d --type=merge -p '{"spec":{"selector":{"matchLabels":{"x":"y"}}}}'"#,
            "field is immutable",
        );
        kubectl.fails(
            r#"kubectl patch po p -p '{"spec":{"restartPolicy":"Never"}}'"#,
            "pod updates may not change fields other than",
        );
        kubectl.fails(
            "kubectl get po --field-selector=spec.nonsense=x",
            r#"field label not supported: spec.nonsense"#,
        );
        kubectl.fails("kubectl label po p 'bad key=x'", "bad key");
        kubectl.fails(
            r#"kubectl create -f - <<'END'
apiVersion: v1
kind: Pod
metadata: {name: wrong}
spec: {terminationGracePeriodSeconds: "soon", containers: [{name: c, image: nginx}]}
END"#,
            "terminationGracePeriodSeconds",
        );
    });
}

#[test]
fn unknown_fields_are_refused_by_name() {
    each_kubectl(|kubectl| {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: typo}\nspec: {contaners: [], containers: [{name: c, image: nginx}]}";
        kubectl.fails(&format!("kubectl create -f - <<'END'\n{pod}\nEND"), "contaners");
        kubectl.ok(&format!("kubectl create --validate=false -f - <<'END'\n{pod}\nEND"));
    });
}

#[test]
fn a_pod_that_is_bound_is_not_bound_again() {
    each_kubectl(|kubectl| {
        super::deletion::bound_pod(kubectl, "p");
        kubectl.prints("kubectl get po p -o jsonpath='{.spec.nodeName}'", "nowhere");
        kubectl.fails(
            r#"kubectl create --raw /api/v1/namespaces/$NS/pods/p/binding -f - <<END
{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "other"}}
END"#,
            r#"is already assigned to node "nowhere""#,
        );
        kubectl.ok("kubectl delete po p --force --grace-period=0");
    });
}
