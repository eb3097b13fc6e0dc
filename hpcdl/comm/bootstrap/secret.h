#pragma once
// The secret of the ranks of one launch, and how one end of a connection proves to the other that it has it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::comm {

using Digest = std::array<std::uint8_t, 32>;

inline std::string_view text_of(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }
/// Random bytes for keys, from the system's generator.
std::string random_bytes(std::size_t n);
std::string hexadecimal(std::string_view bytes);
Digest sha256(std::string_view text);
/// RFC 2104.
Digest hmac_sha256(std::string_view key, std::string_view text);
/// Compares in a time that does not depend on where they differ.
bool same(const Digest& a, const Digest& b);

/// A new secret for a job, in the form of HPCDL_SECRET.
std::string new_secret();
/// HPCDL_SECRET, else the contents of the file that HPCDL_SECRET_FILE names; empty: there is none. Throws UsageError
/// for a file that another user owns or may read, and for a secret that could be guessed.
std::string job_secret();

/// The key of one launch: derived from a token, which differs between launches, and from the secret of its job.
class RunKey {
 public:
  RunKey() : RunKey(std::string_view()) {}
  RunKey(std::string_view token, std::string_view secret = {});
  RunKey(const char* token) : RunKey(std::string_view(token)) {}
  RunKey(const std::string& token) : RunKey(std::string_view(token)) {}

  /// Not secret.
  const Digest& name() const { return name_; }
  bool has_secret() const { return has_secret_; }
  /// The HMAC of a text; the text must be used for no other purpose.
  Digest proof(std::string_view text) const;
  /// Another key, which can only be derived from this one.
  RunKey derived(std::string_view purpose) const;

 private:
  Digest name_{}, key_{};
  bool has_secret_ = false;
};

}  // namespace hpcdl::comm
