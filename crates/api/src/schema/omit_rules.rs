//! Fields with an unusual rule for values that mean "not set" (see [`Omit`]). Upstream's published schema
//! does not contain this; it follows from the Go types.
//!
//! The usual rule: an optional field omits `""`, `[]` and `{}` but keeps `0` and `false`.

use super::{Omit, Schema, Shape, merge_rules};

/// Numbers and booleans whose zero value means "not set".
#[rustfmt::skip]
const ZERO: &[(&str, &str)] = &[
    ("admissionregistration.v1.ValidatingAdmissionPolicyStatus", "observedGeneration"),
    ("apiextensions.v1.CustomResourceColumnDefinition", "priority"),
    ("apiextensions.v1.CustomResourceDefinitionCondition", "observedGeneration"),
    ("apiextensions.v1.CustomResourceDefinitionSpec", "preserveUnknownFields"),
    ("apiextensions.v1.CustomResourceDefinitionStatus", "observedGeneration"),
    ("apiextensions.v1.CustomResourceDefinitionVersion", "deprecated"),
    ("apiextensions.v1.JSONSchemaProps", "exclusiveMaximum exclusiveMinimum nullable uniqueItems x-kubernetes-embedded-resource x-kubernetes-int-or-string"),
    ("apiregistration.v1.APIServiceSpec", "insecureSkipTLSVerify"),
    ("apps.v1.DaemonSetSpec", "minReadySeconds"),
    ("apps.v1.DaemonSetStatus", "numberAvailable numberUnavailable observedGeneration updatedNumberScheduled"),
    ("apps.v1.DeploymentSpec", "minReadySeconds paused"),
    ("apps.v1.DeploymentStatus", "availableReplicas observedGeneration readyReplicas replicas unavailableReplicas updatedReplicas"),
    ("apps.v1.ReplicaSetSpec", "minReadySeconds"),
    ("apps.v1.ReplicaSetStatus", "availableReplicas fullyLabeledReplicas observedGeneration readyReplicas"),
    ("apps.v1.StatefulSetSpec", "minReadySeconds"),
    ("apps.v1.StatefulSetStatus", "currentReplicas observedGeneration readyReplicas updatedReplicas"),
    ("authentication.v1.TokenReviewStatus", "authenticated"),
    ("authorization.v1.SubjectAccessReviewStatus", "denied"),
    ("autoscaling.v1.ScaleSpec", "replicas"),
    ("autoscaling.v2.HorizontalPodAutoscalerStatus", "currentReplicas"),
    ("batch.v1.JobStatus", "active failed succeeded"),
    ("core.v1.AWSElasticBlockStoreVolumeSource", "partition readOnly"),
    ("core.v1.AzureFilePersistentVolumeSource", "readOnly"),
    ("core.v1.AzureFileVolumeSource", "readOnly"),
    ("core.v1.CSIPersistentVolumeSource", "readOnly"),
    ("core.v1.CephFSPersistentVolumeSource", "readOnly"),
    ("core.v1.CephFSVolumeSource", "readOnly"),
    ("core.v1.CinderPersistentVolumeSource", "readOnly"),
    ("core.v1.CinderVolumeSource", "readOnly"),
    ("core.v1.Container", "stdin stdinOnce tty"),
    ("core.v1.ContainerImage", "sizeBytes"),
    ("core.v1.ContainerPort", "hostPort"),
    ("core.v1.ContainerStateTerminated", "signal"),
    ("core.v1.EphemeralContainer", "stdin stdinOnce tty"),
    ("core.v1.Event", "count"),
    ("core.v1.EventSeries", "count"),
    ("core.v1.FCVolumeSource", "readOnly"),
    ("core.v1.FlexPersistentVolumeSource", "readOnly"),
    ("core.v1.FlexVolumeSource", "readOnly"),
    ("core.v1.GCEPersistentDiskVolumeSource", "partition readOnly"),
    ("core.v1.GlusterfsPersistentVolumeSource", "readOnly"),
    ("core.v1.GlusterfsVolumeSource", "readOnly"),
    ("core.v1.ISCSIPersistentVolumeSource", "chapAuthDiscovery chapAuthSession readOnly"),
    ("core.v1.ISCSIVolumeSource", "chapAuthDiscovery chapAuthSession readOnly"),
    ("core.v1.NFSVolumeSource", "readOnly"),
    ("core.v1.NodeSpec", "unschedulable"),
    ("core.v1.PersistentVolumeClaimVolumeSource", "readOnly"),
    ("core.v1.PodCondition", "observedGeneration"),
    ("core.v1.PodSpec", "hostIPC hostNetwork hostPID"),
    ("core.v1.PodStatus", "observedGeneration"),
    ("core.v1.PortworxVolumeSource", "readOnly"),
    ("core.v1.Probe", "failureThreshold initialDelaySeconds periodSeconds successThreshold timeoutSeconds"),
    ("core.v1.QuobyteVolumeSource", "readOnly"),
    ("core.v1.RBDPersistentVolumeSource", "readOnly"),
    ("core.v1.RBDVolumeSource", "readOnly"),
    ("core.v1.ReplicationControllerSpec", "minReadySeconds"),
    ("core.v1.ReplicationControllerStatus", "availableReplicas fullyLabeledReplicas observedGeneration readyReplicas"),
    ("core.v1.ScaleIOPersistentVolumeSource", "readOnly sslEnabled"),
    ("core.v1.ScaleIOVolumeSource", "readOnly sslEnabled"),
    ("core.v1.ServicePort", "nodePort"),
    ("core.v1.ServiceSpec", "healthCheckNodePort publishNotReadyAddresses"),
    ("core.v1.StorageOSPersistentVolumeSource", "readOnly"),
    ("core.v1.StorageOSVolumeSource", "readOnly"),
    ("core.v1.VolumeMount", "readOnly"),
    ("core.v1.VolumeMountStatus", "readOnly"),
    ("events.v1.Event", "deprecatedCount"),
    ("flowcontrol.v1.ResourcePolicyRule", "clusterScope"),
    ("meta.v1.Condition", "observedGeneration"),
    ("meta.v1.ObjectMeta", "generation"),
    ("meta.v1.Status", "code"),
    ("meta.v1.StatusDetails", "retryAfterSeconds"),
    ("networking.v1.ServiceBackendPort", "number"),
    ("policy.v1.PodDisruptionBudgetStatus", "observedGeneration"),
    ("resource.v1.DeviceSubRequest", "count"),
    ("resource.v1.ExactDeviceRequest", "count"),
    ("scheduling.v1.PriorityClass", "globalDefault"),
];

/// Strings for which `""` differs from "not set", and lists that are written even when they are empty.
#[rustfmt::skip]
const KEPT: &[(&str, &str)] = &[
    ("admissionregistration.v1.MatchResources", "matchPolicy"),
    ("admissionregistration.v1.MutatingAdmissionPolicySpec", "failurePolicy"),
    ("admissionregistration.v1.MutatingWebhook", "failurePolicy matchPolicy reinvocationPolicy"),
    ("admissionregistration.v1.NamedRuleWithOperations", "scope"),
    ("admissionregistration.v1.ParamRef", "parameterNotFoundAction"),
    ("admissionregistration.v1.RuleWithOperations", "scope"),
    ("admissionregistration.v1.ServiceReference", "path"),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "failurePolicy"),
    ("admissionregistration.v1.ValidatingWebhook", "failurePolicy matchPolicy"),
    ("admissionregistration.v1.Validation", "reason"),
    ("admissionregistration.v1.WebhookClientConfig", "url"),
    ("apiextensions.v1.CustomResourceDefinitionStatus", "conditions storedVersions"),
    ("apiextensions.v1.CustomResourceDefinitionVersion", "deprecationWarning"),
    ("apiextensions.v1.CustomResourceSubresourceScale", "labelSelectorPath"),
    ("apiextensions.v1.JSONSchemaProps", "$ref x-kubernetes-list-type x-kubernetes-map-type"),
    ("apiextensions.v1.ServiceReference", "path"),
    ("apiextensions.v1.ValidationRule", "reason"),
    ("apiextensions.v1.WebhookClientConfig", "url"),
    ("autoscaling.v2.HPAScalingRules", "selectPolicy"),
    ("batch.v1.CronJobSpec", "timeZone"),
    ("batch.v1.JobSpec", "completionMode managedBy podReplacementPolicy"),
    ("batch.v1.JobStatus", "failedIndexes"),
    ("batch.v1.PodFailurePolicyOnExitCodesRequirement", "containerName"),
    ("batch.v1.SuccessPolicyRule", "succeededIndexes"),
    ("coordination.v1.LeaseSpec", "holderIdentity preferredHolder strategy"),
    ("core.v1.AppArmorProfile", "localhostProfile"),
    ("core.v1.AzureDiskVolumeSource", "cachingMode fsType"),
    ("core.v1.AzureFilePersistentVolumeSource", "secretNamespace"),
    ("core.v1.CSIVolumeSource", "fsType"),
    ("core.v1.ClusterTrustBundleProjection", "name signerName"),
    ("core.v1.Container", "restartPolicy"),
    ("core.v1.ContainerStatus", "stopSignal"),
    ("core.v1.EndpointAddress", "nodeName"),
    ("core.v1.EndpointPort", "appProtocol"),
    ("core.v1.EphemeralContainer", "restartPolicy"),
    ("core.v1.Event", "reportingComponent reportingInstance"),
    ("core.v1.GRPCAction", "service"),
    ("core.v1.GlusterfsPersistentVolumeSource", "endpointsNamespace"),
    ("core.v1.HostPathVolumeSource", "type"),
    ("core.v1.ISCSIPersistentVolumeSource", "initiatorName"),
    ("core.v1.ISCSIVolumeSource", "initiatorName"),
    ("core.v1.Lifecycle", "stopSignal"),
    ("core.v1.LoadBalancerIngress", "ipMode"),
    ("core.v1.LocalVolumeSource", "fsType"),
    ("core.v1.PersistentVolumeClaimSpec", "storageClassName volumeAttributesClassName volumeMode"),
    ("core.v1.PersistentVolumeClaimStatus", "currentVolumeAttributesClassName"),
    ("core.v1.PersistentVolumeSpec", "volumeAttributesClassName volumeMode"),
    ("core.v1.PodDNSConfigOption", "value"),
    ("core.v1.PodResourceClaim", "resourceClaimName resourceClaimTemplateName"),
    ("core.v1.PodResourceClaimStatus", "resourceClaimName"),
    ("core.v1.PodSchedulingGroup", "podGroupName"),
    ("core.v1.PodSecurityContext", "fsGroupChangePolicy seLinuxChangePolicy supplementalGroupsPolicy"),
    ("core.v1.PodSpec", "hostnameOverride preemptionPolicy runtimeClassName"),
    ("core.v1.PortStatus", "error"),
    ("core.v1.SeccompProfile", "localhostProfile"),
    ("core.v1.SecurityContext", "procMount"),
    ("core.v1.ServicePort", "appProtocol"),
    ("core.v1.ServiceSpec", "internalTrafficPolicy ipFamilyPolicy loadBalancerClass trafficDistribution"),
    ("core.v1.TopologySpreadConstraint", "nodeAffinityPolicy nodeTaintsPolicy"),
    ("core.v1.TypedLocalObjectReference", "apiGroup"),
    ("core.v1.TypedObjectReference", "apiGroup namespace"),
    ("core.v1.VolumeMount", "mountPropagation recursiveReadOnly"),
    ("core.v1.VolumeMountStatus", "recursiveReadOnly"),
    ("core.v1.WindowsSecurityContextOptions", "gmsaCredentialSpec gmsaCredentialSpecName runAsUserName"),
    ("discovery.v1.Endpoint", "hostname nodeName zone"),
    ("discovery.v1.EndpointPort", "appProtocol name protocol"),
    ("discovery.v1.EndpointSlice", "ports"),
    ("meta.v1.DeleteOptions", "propagationPolicy"),
    ("meta.v1.Preconditions", "resourceVersion uid"),
    ("networking.v1.IngressClassParametersReference", "apiGroup namespace scope"),
    ("networking.v1.IngressPortStatus", "error"),
    ("networking.v1.IngressSpec", "ingressClassName"),
    ("networking.v1.NetworkPolicyPort", "protocol"),
    ("policy.v1.PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy"),
    ("rbac.v1.ClusterRole", "rules"),
    ("rbac.v1.Role", "rules"),
    ("resource.v1.AllocatedDeviceStatus", "shareID"),
    ("resource.v1.Device", "nodeName"),
    ("resource.v1.DeviceAttribute", "string version"),
    ("resource.v1.DeviceClassSpec", "extendedResourceName"),
    ("resource.v1.DeviceConstraint", "distinctAttribute matchAttribute"),
    ("resource.v1.DeviceRequestAllocationResult", "shareID"),
    ("resource.v1.NodeAllocatableResourceMapping", "capacityKey"),
    ("resource.v1.ResourceSliceSpec", "nodeName"),
    ("scheduling.v1.PriorityClass", "preemptionPolicy"),
    ("storage.v1.CSIDriverSpec", "fsGroupPolicy"),
    ("storage.v1.StorageClass", "reclaimPolicy volumeBindingMode"),
    ("storage.v1.VolumeAttachmentSource", "persistentVolumeName"),
];

pub(super) fn add(schema: &mut Schema) {
    set(schema, ZERO, Omit::Zero);
    set(schema, KEPT, Omit::Never);
}

fn set(schema: &mut Schema, table: &[(&str, &str)], omit: Omit) {
    for (owner, fields) in table {
        let id = merge_rules::named(schema, owner);
        let Shape::Object(object) = &mut schema.types[id.0 as usize].shape else { continue };
        for name in fields.split_whitespace() {
            let field = object.fields.get_mut(name);
            field.unwrap_or_else(|| panic!("no {owner}.{name}")).omit = omit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_and_booleans_omit_zero() {
        let schema = Schema::built_in();
        for (owner, fields) in ZERO {
            let owner = merge_rules::named(&schema, owner);
            for field in fields.split_whitespace() {
                let shape = schema.shape(schema.field(owner, field).unwrap().ty);
                assert!(matches!(shape, Shape::Bool | Shape::Integer { .. }), "{field}");
            }
        }
    }

    #[test]
    fn a_host_path_keeps_its_empty_type_and_a_volume_its_name() {
        let schema = Schema::built_in();
        let omit = |owner: &str, field: &str| {
            schema.field(merge_rules::named(&schema, owner), field).unwrap().omit
        };
        assert_eq!(omit("core.v1.HostPathVolumeSource", "type"), Omit::Never);
        assert_eq!(omit("core.v1.Volume", "name"), Omit::Never);
        assert_eq!(omit("core.v1.EnvVar", "value"), Omit::Empty);
        assert_eq!(omit("core.v1.PodSpec", "hostNetwork"), Omit::Zero);
    }
}
