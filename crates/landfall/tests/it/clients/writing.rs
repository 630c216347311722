//! Creating and changing objects: imperative commands, patches, client-side and server-side apply, edit, replace, scale.

use crate::harness::each_kubectl;

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 45
      containers:
      - name: nginx
        image: nginx:1.27
        ports: [{containerPort: 80}]
        lifecycle: {preStop: {exec: {command: [sleep, '5']}}}
";

fn file(name: &str, text: &str) -> String {
    format!("cat > {name} <<'END'\n{text}\nEND\n")
}

#[test]
fn imperative_commands_create_objects() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run p --image=nginx --port=80
            kubectl create deployment d --image=nginx
            kubectl create service clusterip s --tcp=80:8080
            kubectl create service nodeport n --tcp=80
            kubectl expose pod p --port=80
            kubectl create job j --image=busybox
            kubectl create cm m --from-literal=a=b
            kubectl create secret generic s --from-literal=a=b
            kubectl create secret docker-registry r --docker-username=u --docker-password=p
            kubectl create sa robot
            kubectl create quota q --hard=count/configmaps=100
            kubectl create role r --verb=get --resource=pods
            kubectl create rolebinding r --role=r --serviceaccount=$NS:robot
            kubectl create ingress i --rule=example.com/=p:80
            kubectl create priorityclass high-$NS --value=1000
            kubectl autoscale deployment d --min=1 --max=3");
        kubectl.prints(
            "kubectl get po p -o jsonpath='{.status.phase} {.status.qosClass}'",
            "Pending BestEffort",
        );
        kubectl.shows("kubectl get svc p", &["TYPE", "ClusterIP", "10.96.", "80/TCP"]);
        let port = kubectl.ok("kubectl get svc n -o jsonpath='{.spec.ports[0].nodePort}'");
        assert!(port.parse().is_ok_and(|port: u16| (30000..=32767).contains(&port)), "{port}");
        kubectl.prints("kubectl get secret s -o jsonpath='{.data.a}' | base64 -d", "b");
        kubectl.prints(
            "kubectl get deploy d -o jsonpath='{.spec.strategy.rollingUpdate.maxSurge}'",
            "25%",
        );
        kubectl.shows(
            "kubectl describe deploy d",
            &["Replicas:", "1 desired", "StrategyType:", "RollingUpdate"],
        );
        kubectl.shows("kubectl get hpa d", &["REFERENCE", "Deployment/d"]);
        if kubectl.is_before(24) {
            return; // It asks for batch/v1beta1 and policy/v1beta1, which went with 1.25.
        }
        kubectl.ok("kubectl create cronjob c --image=busybox --schedule='*/5 * * * *'
             kubectl create job from-c --from=cronjob/c
             kubectl create pdb b --selector=run=p --min-available=1");
        kubectl.shows("kubectl get cronjob c", &["SCHEDULE", "*/5 * * * *"]);
    });
}

#[test]
fn all_kinds_of_patches_work() {
    each_kubectl(|kubectl| {
        kubectl.ok(&(file("d.yaml", DEPLOYMENT) + "kubectl create -f d.yaml"));
        let get =
            |path: &str| kubectl.ok(&format!("kubectl get deploy web -o jsonpath='{{{path}}}'"));
        // Strategic: lists are merged by name.
        kubectl.prints(
            r#"kubectl patch deploy web -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"busybox"}]}}}}'"#,
            "deployment.apps/web patched",
        );
        assert_eq!(get(".spec.template.spec.containers[*].name"), "side nginx");
        kubectl.ok(r#"kubectl patch deploy web --type=strategic -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}'"#);
        assert_eq!(get(".spec.template.spec.containers[*].name"), "nginx");
        // Merge: lists are replaced, null removes.
        kubectl.ok(r#"kubectl patch deploy web --type=merge -p '{"metadata":{"labels":{"app":null,"new":"label"}},"spec":{"template":{"spec":{"containers":[{"name":"only","image":"busybox"}]}}}}'"#);
        assert_eq!(get(".spec.template.spec.containers[*].name"), "only");
        assert_eq!(get(".metadata.labels"), r#"{"new":"label"}"#);
        // JSON patch: by path, with a test.
        kubectl.ok(r#"kubectl patch deploy web --type=json -p '[{"op":"test","path":"/spec/replicas","value":2},{"op":"replace","path":"/spec/replicas","value":4}]'"#);
        assert_eq!(get(".spec.replicas"), "4");
        kubectl.fails(
            r#"kubectl patch deploy web --type=json -p '[{"op":"test","path":"/spec/replicas","value":2}]'"#,
            "The request is invalid", // New ones add the message: the server rejected our request …
        );
        kubectl.prints(
            r#"kubectl patch deploy web -p '{"spec":{"replicas":4}}'"#,
            "deployment.apps/web patched (no change)",
        );
        assert_eq!(get(".metadata.generation"), "5");
    });
}

#[test]
fn client_side_apply_keeps_what_others_set() {
    each_kubectl(|kubectl| {
        let write = file("d.yaml", DEPLOYMENT);
        kubectl.prints(&(write.clone() + "kubectl apply -f d.yaml"), "deployment.apps/web created");
        kubectl.prints("kubectl apply -f d.yaml", "deployment.apps/web unchanged");
        kubectl.ok("kubectl annotate deploy web other=kept");
        kubectl.prints(
            "sed 's/1.27/1.28/; s/replicas: 2/replicas: 3/' d.yaml | kubectl apply -f -",
            "deployment.apps/web configured",
        );
        kubectl.prints(
            "kubectl get deploy web -o jsonpath='{.spec.replicas} {.spec.template.spec.containers[0].image} {.metadata.annotations.other}'",
            "3 nginx:1.28 kept",
        );
        // A field that is no longer in the file is removed.
        kubectl.ok("sed '/lifecycle/d' d.yaml | kubectl apply -f -");
        kubectl.prints("kubectl get deploy web -o jsonpath='{..lifecycle}'", "");
        kubectl.shows("kubectl apply view-last-applied deploy web", &["nginx:1.27"]);
        kubectl.prints(
            "kubectl apply -f d.yaml --dry-run=server",
            "deployment.apps/web configured (server dry run)",
        );
    });
}

#[test]
fn server_side_apply_tracks_field_owners() {
    each_kubectl(|kubectl| {
        let mine = file(
            "mine.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: mine, b: mine}",
        );
        kubectl.prints(
            &(mine + "kubectl apply --server-side -f mine.yaml"),
            "configmap/c serverside-applied",
        );
        let other = file(
            "other.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: other}",
        );
        kubectl.fails(
            &(other + "kubectl apply --server-side --field-manager=other -f other.yaml"),
            "conflict with \"kubectl\": .data.a",
        );
        kubectl.ok(
            "kubectl apply --server-side --field-manager=other --force-conflicts -f other.yaml",
        );
        kubectl.prints("kubectl get cm c -o jsonpath='{.data}'", r#"{"a":"other","b":"mine"}"#);
        // A field that its only owner no longer applies is removed.
        kubectl.ok(
            "sed 's/, b: mine//; s/a: mine/c: mine/' mine.yaml | kubectl apply --server-side -f -",
        );
        kubectl.prints("kubectl get cm c -o jsonpath='{.data}'", r#"{"a":"other","c":"mine"}"#);
        let flag = if kubectl.is_before(21) { "" } else { "--show-managed-fields" };
        kubectl.shows(
            &format!("kubectl get cm c -o yaml {flag}"),
            &["managedFields:", "manager: kubectl", "operation: Apply"],
        );
    });
}

#[test]
fn apply_prunes_objects_that_left_the_files() {
    each_kubectl(|kubectl| {
        let both = file(
            "both.yaml",
            "apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: x}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, labels: {set: x}}",
        );
        let one = file(
            "one.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, labels: {set: x}}",
        );
        kubectl.ok(&(both + "kubectl apply -f both.yaml"));
        let list = if kubectl.is_before(26) { "whitelist" } else { "allowlist" };
        let output = kubectl.ok(&format!(
            "{one} kubectl apply --prune -l set=x --prune-{list}=core/v1/ConfigMap -f one.yaml -n $NS"
        ));
        assert!(output.contains("configmap/two pruned"), "{output}");
        kubectl.prints("kubectl get cm -l set=x -o name", "configmap/one");
    });
}

#[test]
fn a_diff_shows_what_an_apply_would_do() {
    each_kubectl(|kubectl| {
        kubectl.ok(&(file("d.yaml", DEPLOYMENT) + "kubectl apply -f d.yaml"));
        kubectl.prints("kubectl diff -f d.yaml", "");
        let output = kubectl.run("sed 's/1.27/1.28/' d.yaml | kubectl diff -f -");
        assert_eq!(output.code, 1, "a difference: {output}");
        output.has_in_order(&["- image: nginx:1.27", "- image: nginx:1.28"]);
        kubectl.prints("kubectl get deploy web -o jsonpath='{..image}'", "nginx:1.27");
    });
}

#[test]
fn replace_and_edit_write_the_whole_object() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl create cm c --from-literal=a=old; kubectl get cm c -o yaml > c.yaml");
        kubectl
            .prints("sed -i s/old/new/ c.yaml; kubectl replace -f c.yaml", "configmap/c replaced");
        kubectl.prints("kubectl get cm c -o jsonpath='{.data.a}'", "new");
        // c.yaml has an old resourceVersion.
        kubectl.fails(
            "kubectl replace -f c.yaml",
            r#"Error from server (Conflict): error when replacing "c.yaml": Operation cannot be fulfilled on configmaps "c": the object has been modified; please apply your changes to the latest version and try again"#,
        );
        kubectl.prints("EDITOR='sed -i s/new/edited/' kubectl edit cm c", "configmap/c edited");
        kubectl.prints("kubectl get cm c -o jsonpath='{.data.a}'", "edited");
        kubectl.shows("EDITOR=true kubectl edit cm c 2>&1", &["no changes made"]);
    });
}

#[test]
fn labels_annotations_images_and_scale_are_set() {
    each_kubectl(|kubectl| {
        kubectl.ok(&(file("d.yaml", DEPLOYMENT) + "kubectl create -f d.yaml"));
        kubectl.prints("kubectl label deploy web tier=front", "deployment.apps/web labeled");
        kubectl.fails(
            "kubectl label deploy web tier=back",
            "already has a value (front), and --overwrite is false",
        );
        kubectl.ok(
            "kubectl label deploy web tier=back --overwrite; kubectl annotate deploy web note=x",
        );
        kubectl.prints("kubectl get deploy -l tier=back -o name", "deployment.apps/web");
        kubectl.ok("kubectl label deploy web tier-");
        kubectl.prints("kubectl get deploy -l tier -o name", "");
        kubectl.prints(
            "kubectl set image deploy/web nginx=nginx:1.29",
            "deployment.apps/web image updated",
        );
        kubectl.ok(
            "kubectl set env deploy/web A=b; kubectl set resources deploy/web --requests=cpu=100m",
        );
        kubectl.prints(
            "kubectl get deploy web -o jsonpath='{..image} {..env[0].value} {..requests.cpu}'",
            "nginx:1.29 b 100m",
        );
        kubectl.prints("kubectl scale deploy web --replicas=5", "deployment.apps/web scaled");
        kubectl.fails(
            "kubectl scale deploy web --replicas=1 --current-replicas=3",
            "Expected replicas to be 3, was 5",
        );
        kubectl.prints("kubectl get deploy web -o jsonpath='{.spec.replicas}'", "5");
        kubectl.shows("kubectl rollout history deploy/web", &["deployment.apps/web"]);
        kubectl.prints("kubectl rollout restart deploy/web", "deployment.apps/web restarted");
        kubectl.prints("kubectl rollout pause deploy/web", "deployment.apps/web paused");
        kubectl.prints("kubectl get deploy web -o jsonpath='{.spec.paused}'", "true");
    });
}

#[test]
fn pods_are_resized_and_debugged_through_their_subresources() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run p --image=nginx --dry-run=client -o yaml \
            | sed 's/resources: {}/resources: {requests: {cpu: 100m}}/' | kubectl create -f -");
        if !kubectl.is_before(32) {
            kubectl.ok(r#"kubectl patch po p --subresource=resize -p '{"spec":{"containers":[{"name":"p","resources":{"requests":{"cpu":"200m"}}}]}}'"#);
            kubectl.prints(
                "kubectl get po p -o jsonpath='{.spec.containers[0].resources.requests.cpu}'",
                "200m",
            );
            kubectl.ok("kubectl debug p --image=busybox --profile=general -c look -- sh");
            kubectl.prints(
                "kubectl get po p -o jsonpath='{.spec.ephemeralContainers[*].name}'",
                "look",
            );
        }
    });
}
