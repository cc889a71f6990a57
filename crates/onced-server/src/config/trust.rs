//! Whose certificates an upstream with TLS may show: those of a file, instead of those that the machine trusts.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::document::Entry;

/// Certificates to trust.
pub(crate) type Certificates = Arc<[CertificateDer<'static>]>;

/// Reads `upstream_ca = "FILE"`.
pub(super) fn certificates(entry: &Entry<'_>) -> Option<Option<Certificates>> {
    let read = entry.document.outside.file(Path::new(entry.text("/etc/ssl/own-ca.pem")?));
    let text = read.map_err(|error| {
        entry.refuse(format!("cannot be read ({error}); name a file that this process may read"));
    });
    let found = CertificateDer::pem_slice_iter(text.ok()?.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = found.ok().filter(|found| {
        let mut store = RootCertStore::empty();
        !found.is_empty() && found.iter().all(|certificate| store.add(certificate.clone()).is_ok())
    });
    if found.is_none() {
        entry.refuse("holds no certificates that can be trusted; name a PEM file of CA certificates");
    }
    Some(Some(found?.into()))
}
