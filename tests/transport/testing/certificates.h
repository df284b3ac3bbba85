#ifndef REFRACT_TESTS_TRANSPORT_TESTING_CERTIFICATES_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_CERTIFICATES_H_

// Certificates of any fault, made with OpenSSL and written to a folder of the
// test.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/tls/tls_contexts.h"
#include "glog/logging.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"

namespace refract::transport {

class Certificates {
 public:
  struct Facts {
    std::string name;
    std::string issuer = "root";  // itself: a root
    std::string alternative = "IP:127.0.0.1,DNS:localhost";
    long from_s = -3600;  // against now
    long until_s = 3600;
    std::string usage;  // extendedKeyUsage; empty: any
  };

  Certificates() {
    std::string pattern = testing::TempDir() + "/refract-tls-XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    Make({.name = "root", .issuer = "root"});
    Make({.name = "stranger", .issuer = "stranger"});
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  // Writes NAME.crt and NAME.key; replaces earlier ones.
  void Make(const Facts& facts) {
    const bool root = facts.issuer == facts.name;
    std::shared_ptr<EVP_PKEY> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
    std::shared_ptr<X509> made(X509_new(), &X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), facts.from_s);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), facts.until_s);
    X509_set_pubkey(made.get(), key.get());
    X509_NAME_add_entry_by_txt(
        X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
        reinterpret_cast<const unsigned char*>(facts.name.c_str()), -1, -1, 0);
    const auto& [issuer_key, issuer] =
        root ? std::pair(key, made) : made_.at(facts.issuer);
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get()));
    Extend(*made, NID_basic_constraints, root ? "CA:TRUE" : "CA:FALSE");
    if (!root) Extend(*made, NID_subject_alt_name, facts.alternative);
    if (!facts.usage.empty()) Extend(*made, NID_ext_key_usage, facts.usage);
    CHECK(X509_sign(made.get(), issuer_key.get(), EVP_sha256()) > 0);
    Write(facts.name + ".crt",
          [&](std::FILE* file) { return PEM_write_X509(file, made.get()); });
    Write(facts.name + ".key", [&](std::FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr,
                                  nullptr);
    });
    made_[facts.name] = {key, made};
  }

  std::string path(const std::string& file) const {
    return folder_ + "/" + file;
  }
  base::TlsFiles Files(const std::string& name,
                       const std::string& roots = "root") const {
    base::TlsFiles files;
    files.certificate = path(name + ".crt");
    files.key = path(name + ".key");
    files.roots = path(roots + ".crt");
    files.certificate_flag = "--node-tls-cert";
    files.key_flag = "--node-tls-key";
    files.roots_flag = "--node-tls-ca";
    return files;
  }
  std::shared_ptr<base::TlsContexts> Contexts(
      const std::string& name, base::TlsUse use,
      const std::string& roots = "root",
      base::Clock& clock = base::Clock::Real()) const {
    auto contexts = base::TlsContexts::Create(Files(name, roots), use, clock);
    CHECK(contexts.ok()) << contexts.status();
    return *std::move(contexts);
  }
  // A client or server that checks nothing of its own, with the certificate
  // NAME, or without one: an end that breaks the rules.
  std::shared_ptr<SSL_CTX> Careless(bool server,
                                    const std::string& name) const {
    std::shared_ptr<SSL_CTX> context(
        SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()),
        &SSL_CTX_free);
    SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_num_tickets(context.get(), 0);
    if (name.empty()) return context;
    CHECK(SSL_CTX_use_certificate_file(context.get(),
                                       path(name + ".crt").c_str(),
                                       SSL_FILETYPE_PEM) == 1);
    CHECK(SSL_CTX_use_PrivateKey_file(context.get(),
                                      path(name + ".key").c_str(),
                                      SSL_FILETYPE_PEM) == 1);
    return context;
  }

 private:
  static void Extend(X509& to, int kind, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, &to, &to, nullptr, nullptr, 0);
    X509_EXTENSION* const extension =
        X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
    CHECK(extension != nullptr) << value;
    X509_add_ext(&to, extension, -1);
    X509_EXTENSION_free(extension);
  }
  // Aside and renamed, so that no reader sees half a file.
  template <typename WriteTo>
  void Write(const std::string& name, WriteTo write) {
    const std::string aside = path("aside");
    std::FILE* const file = std::fopen(aside.c_str(), "w");
    PCHECK(file != nullptr);
    CHECK(write(file) == 1);
    std::fclose(file);
    std::filesystem::rename(aside, path(name));
  }

  std::string folder_;
  long serial_ = 0;
  std::map<std::string,
           std::pair<std::shared_ptr<EVP_PKEY>, std::shared_ptr<X509>>>
      made_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_CERTIFICATES_H_
