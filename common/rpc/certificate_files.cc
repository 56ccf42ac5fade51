#include "common/rpc/certificate_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/logging.h"

namespace baton::rpc {
namespace {

struct Free {
  void operator()(BIO* p) const { BIO_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509_STORE* p) const { X509_STORE_free(p); }
  void operator()(X509_STORE_CTX* p) const { X509_STORE_CTX_free(p); }
  void operator()(GENERAL_NAMES* p) const { GENERAL_NAMES_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

constexpr size_t kMaxFileBytes = 1 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& what, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot read the ", what, " ", path, ": ", std::strerror(errno),
                                            "; deploy/certs/make_certs.sh makes certificates"));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

absl::Status NotPem(const std::string& what, const std::string& path) {
  ERR_clear_error();
  return absl::FailedPreconditionError(absl::StrCat("the ", what, " ", path, " holds none in PEM form"));
}

Owned<BIO> Memory(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Owned<X509> NextCertificate(BIO* bio) { return Owned<X509>(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr)); }

std::vector<std::string> DnsNames(X509* cert) {
  std::vector<std::string> names;
  Owned<GENERAL_NAMES> all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr)));
  if (all == nullptr) return names;
  for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type != GEN_DNS) continue;
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                       static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return names;
}

absl::Time NotAfter(X509* cert) {
  std::tm tm{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) != 1) return absl::InfinitePast();
  return absl::FromTM(tm, absl::UTCTimeZone());
}

// The leaf with what follows it in its file, against the authority.
absl::Status VerifyChain(X509* leaf, BIO* rest, const std::string& ca_text, const std::string& cert_path,
                         const std::string& ca_path) {
  Owned<X509_STORE> store(X509_STORE_new());
  Owned<BIO> ca = Memory(ca_text);
  int num_roots = 0;
  while (Owned<X509> root = NextCertificate(ca.get())) num_roots += X509_STORE_add_cert(store.get(), root.get());
  ERR_clear_error();
  if (num_roots == 0) return NotPem("authority's certificate", ca_path);
  STACK_OF(X509)* chain = sk_X509_new_null();
  while (Owned<X509> next = NextCertificate(rest)) sk_X509_push(chain, next.release());
  ERR_clear_error();
  Owned<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), leaf, chain);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  sk_X509_pop_free(chain, X509_free);
  if (good) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the certificate ", cert_path, " does not pass under the authority ",
                                                    ca_path, ": ", X509_verify_cert_error_string(error),
                                                    "; renew it (deploy/certs/make_certs.sh DIR --renew) or give the "
                                                    "authority that signed it"));
}

}  // namespace

absl::StatusOr<CertificatePair> ReadCertificatePair(const std::string& cert, const std::string& key) {
  absl::StatusOr<std::string> cert_text = ReadPem("certificate", cert);
  if (!cert_text.ok()) return cert_text.status();
  absl::StatusOr<std::string> key_text = ReadPem("key", key);
  if (!key_text.ok()) return key_text.status();
  const Owned<X509> leaf = NextCertificate(Memory(*cert_text).get());
  if (leaf == nullptr) return NotPem("certificate", cert);
  // The empty password keeps OpenSSL from asking on the terminal for that of an encrypted key.
  Owned<EVP_PKEY> pkey(PEM_read_bio_PrivateKey(Memory(*key_text).get(), nullptr, nullptr, const_cast<char*>("")));
  if (pkey == nullptr) return NotPem("key (without a password)", key);
  if (X509_check_private_key(leaf.get(), pkey.get()) != 1) {
    ERR_clear_error();
    return absl::FailedPreconditionError(
        absl::StrCat("the key ", key, " does not belong to the certificate ", cert, "; give the pair that was made together"));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(leaf.get())) > 0) {
    return absl::FailedPreconditionError(absl::StrCat("the certificate ", cert, " is not valid yet; is the clock right?"));
  }
  const absl::Time end = NotAfter(leaf.get());
  if (end < absl::Now()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate ", cert, " has expired (", absl::FormatTime(end, absl::UTCTimeZone()), "); renew it"));
  }
  return CertificatePair{*std::move(cert_text), *std::move(key_text), {DnsNames(leaf.get()), end}};
}

absl::StatusOr<CertificateInfo> CheckCertificateFiles(const std::string& cert, const std::string& key,
                                                      const std::string& ca) {
  absl::StatusOr<CertificatePair> pair = ReadCertificatePair(cert, key);
  if (!pair.ok()) return pair.status();
  absl::StatusOr<std::string> ca_text = ReadPem("authority's certificate", ca);
  if (!ca_text.ok()) return ca_text.status();
  Owned<BIO> bio = Memory(pair->cert);
  Owned<X509> leaf = NextCertificate(bio.get());
  if (absl::Status s = VerifyChain(leaf.get(), bio.get(), *ca_text, cert, ca); !s.ok()) return s;
  return pair->info;
}

void WarnBeforeItEnds(const CertificateInfo& info, const std::string& cert, absl::string_view renew) {
  const absl::Duration left = info.not_after - absl::Now();
  if (left >= kCertificateEndsSoon) return;
  LogWarn(absl::StrCat("the certificate ends soon; ", renew),
          {{"certificate", cert}, {"hours_left", absl::ToInt64Hours(left)}});
}

}  // namespace baton::rpc
