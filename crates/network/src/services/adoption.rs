//! Reads what an earlier process wrote into the tables of Services, so that only differences are sent.

use super::Frontend;
use super::entries::{Choice, Installed, Stale};
use super::layout::{Layout, Pick, Scope};
use super::stored::EndpointList;
use crate::cidr::address_from;
use crate::nft::{Connection, DumpedElement, Set};
use crate::{Protocol, Result, Unserved};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The content of the tables.
#[derive(Default)]
pub(super) struct Found {
    pub(super) frontends: HashMap<Frontend, Installed>,
    pub(super) stale: Stale,
    /// Chains that choose endpoints, by family (`ipv4`) and scope.
    pub(super) picks: HashSet<(bool, Scope, Pick)>,
    pub(super) cluster_ips: BTreeSet<IpAddr>,
    pub(super) hairpin: BTreeSet<IpAddr>,
    /// A Service address lacks some of its endpoints, because another program changed the table.
    pub(super) incomplete: bool,
}

/// Adds the elements of one family to `found`.
pub(super) fn read(connection: &mut Connection, layout: &Layout, found: &mut Found) -> Result<()> {
    let mut reader = Reader { connection, layout };
    for scope in Scope::ALL {
        for pick in reader.numbers(&layout.maps(scope).picks)? {
            found.picks.insert((layout.ipv4, scope, Pick::from_code(pick)));
        }
        reader.choices(scope, found)?;
    }
    for (set, change) in [
        (&layout.masquerade, (|state| state.masquerade = true) as fn(&mut Installed)),
        (&layout.external_local, |state| state.external_local = true),
        (&layout.rejected, |state| state.unserved = Unserved::Reject),
        (&layout.dropped, |state| state.unserved = Unserved::Drop),
        // The ranges themselves are not read, so that they are written again.
        (&layout.firewall, |state| state.sources = Some(Arc::new([]))),
    ] {
        for element in reader.elements(set)? {
            if let Some((frontend, _)) = reader.frontend(&element.key) {
                change(found.frontends.entry(frontend).or_default());
            }
        }
    }
    found.cluster_ips.extend(reader.addresses(&layout.cluster_ips)?);
    found.hairpin.extend(reader.addresses(&layout.hairpin)?);
    Ok(())
}

/// The keys of all remembered clients of these Service addresses.
pub(super) fn clients(
    connection: &mut Connection,
    layout: &Layout,
    of: &HashSet<Frontend>,
) -> Result<Vec<Vec<u8>>> {
    let mut reader = Reader { connection, layout };
    let all = reader.elements(&layout.affinity)?;
    let is_one = |key: &[u8]| reader.client_of(key).is_some_and(|service| of.contains(&service));
    Ok(all.into_iter().map(|element| element.key).filter(|key| is_one(key)).collect())
}

struct Reader<'a> {
    connection: &'a mut Connection,
    layout: &'a Layout,
}

impl Reader<'_> {
    fn elements(&mut self, set: &Set) -> Result<Vec<DumpedElement>> {
        self.connection.elements(&self.layout.table, set)
    }

    fn numbers(&mut self, set: &Set) -> Result<Vec<u32>> {
        let elements = self.elements(set)?;
        Ok(elements.iter().filter_map(|element| number(&element.key)).collect())
    }

    /// The first address of every element.
    fn addresses(&mut self, set: &Set) -> Result<Vec<IpAddr>> {
        let length = self.address_bytes();
        let elements = self.elements(set)?;
        let keys = elements.iter().filter_map(|element| element.key.get(..length));
        Ok(keys.filter_map(address_from).collect())
    }

    fn choices(&mut self, scope: Scope, found: &mut Found) -> Result<()> {
        let maps = self.layout.maps(scope);
        let mut numbered: BTreeMap<(Frontend, u32), SocketAddr> = BTreeMap::new();
        for element in self.elements(&maps.endpoints)? {
            let Some((frontend, rest)) = self.frontend(&element.key) else { continue };
            let endpoint = element.value.as_deref().and_then(|value| self.endpoint(value));
            if let (Some(number), Some(endpoint)) = (number(rest), endpoint) {
                numbered.insert((frontend, number), endpoint);
            }
        }
        for element in self.elements(&maps.services)? {
            let Some((frontend, _)) = self.frontend(&element.key) else { continue };
            let Some(code) = element.value.as_deref().and_then(number) else { continue };
            let pick = Pick::from_code(code);
            let endpoints = (0..pick.count).filter_map(|n| numbered.remove(&(frontend, n)));
            let endpoints: Vec<SocketAddr> = endpoints.collect();
            found.incomplete |= endpoints.len() != pick.count as usize;
            let endpoints = EndpointList::new(self.layout.ipv4, &endpoints);
            let choice = Choice { endpoints, affinity: pick.affinity };
            let state = found.frontends.entry(frontend).or_default();
            match scope {
                Scope::Any => state.any = choice,
                Scope::Outside => state.outside = choice,
            }
        }
        for ((frontend, number), endpoint) in numbered {
            found.stale.insert((scope, frontend, number), endpoint);
        }
        Ok(())
    }

    fn address_bytes(&self) -> usize {
        if self.layout.ipv4 { 4 } else { 16 }
    }

    /// The Service address in the key of a remembered client.
    fn client_of(&self, key: &[u8]) -> Option<Frontend> {
        Some(self.frontend(key.get(self.address_bytes()..)?)?.0)
    }

    /// The Service address at the start of a key, and the rest of the key.
    fn frontend<'b>(&self, key: &'b [u8]) -> Option<(Frontend, &'b [u8])> {
        let (address, rest) = key.split_at_checked(self.address_bytes())?;
        let (protocol, rest) = rest.split_at_checked(4)?;
        let (port, rest) = rest.split_at_checked(4.min(rest.len()))?;
        let frontend = Frontend {
            address: address_from(address)?,
            protocol: Protocol::from_number(*protocol.first()?)?,
            port: u16::from_be_bytes(port.get(..2)?.try_into().ok()?),
        };
        Some((frontend, rest))
    }

    fn endpoint(&self, value: &[u8]) -> Option<SocketAddr> {
        let (address, port) = value.split_at_checked(self.address_bytes())?;
        let port = u16::from_be_bytes(port.get(..2)?.try_into().ok()?);
        Some(SocketAddr::new(address_from(address)?, port))
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}
