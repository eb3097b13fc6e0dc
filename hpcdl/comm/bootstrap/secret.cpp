#include "hpcdl/comm/bootstrap/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sha2.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {

namespace {

constexpr std::size_t kLeastSecret = 16, kMostSecret = 4096;  // bytes

/// Without the line end that an editor adds.
std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::string checked(std::string secret, const std::string& from) {
  if (secret.size() < kLeastSecret || secret.size() > kMostSecret)
    fail_usage("dist", "{} has {} bytes; expected {} to {}, as \"openssl rand -hex 32\" prints them", from,
               secret.size(), kLeastSecret, kMostSecret);
  return secret;
}

std::string read_secret(const std::string& path) {
  struct File {
    int fd;
    ~File() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat s{};
  if (file.fd < 0 || fstat(file.fd, &s) != 0)
    fail_usage("dist", "HPCDL_SECRET_FILE: cannot read {}: {}", path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) fail_usage("dist", "HPCDL_SECRET_FILE: {} is not a file", path);
  if (s.st_uid != geteuid()) fail_usage("dist", "HPCDL_SECRET_FILE: {} belongs to another user", path);
  if (s.st_mode & 077)
    fail_usage("dist", "HPCDL_SECRET_FILE: other users may read or write {}: chmod 600 {}", path, path);
  std::string text(kMostSecret + 2, '\0');
  const auto n = ::read(file.fd, text.data(), text.size());
  if (n < 0) fail_usage("dist", "HPCDL_SECRET_FILE: cannot read {}: {}", path, std::strerror(errno));
  text.resize(static_cast<std::size_t>(n));
  return trimmed(std::move(text));
}

}  // namespace

std::string random_bytes(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t at = 0; at < n;) {
    const auto got = getrandom(bytes.data() + at, n - at, 0);
    require(got > 0 || errno == EINTR, "dist", "the system cannot provide random numbers: {}", std::strerror(errno));
    if (got > 0) at += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

Digest sha256(std::string_view text) {
  SHA2_CTX context;
  Digest d;
  SHA256Init(&context);
  SHA256Update(&context, reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  SHA256Final(d.data(), &context);
  return d;
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  std::array<char, SHA256_BLOCK_LENGTH> block{};
  const Digest shorter = key.size() > block.size() ? sha256(key) : Digest{};
  if (key.size() > block.size()) key = text_of(shorter);
  key.copy(block.data(), block.size());
  std::string inner, outer;
  for (const char c : block) inner += static_cast<char>(c ^ 0x36), outer += static_cast<char>(c ^ 0x5c);
  const Digest d = sha256(inner.append(text));
  return sha256(outer.append(text_of(d)));
}

bool same(const Digest& a, const Digest& b) {
  volatile std::uint8_t differs = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differs = static_cast<std::uint8_t>(differs | (a[i] ^ b[i]));
  return differs == 0;
}

std::string new_secret() { return hexadecimal(random_bytes(32)); }

std::string job_secret() {
  if (const char* secret = std::getenv("HPCDL_SECRET"); secret && *secret)
    return checked(trimmed(secret), "HPCDL_SECRET");
  const char* file = std::getenv("HPCDL_SECRET_FILE");
  return file && *file ? checked(read_secret(file), fmt::format("the secret in {}", file)) : std::string();
}

RunKey::RunKey(std::string_view token, std::string_view secret)
    : name_(sha256(std::string("hpcdl run ").append(token))),
      key_(hmac_sha256(secret, std::string("hpcdl key ").append(token))),
      has_secret_(!secret.empty()) {}

Digest RunKey::proof(std::string_view text) const { return hmac_sha256(text_of(key_), text); }

RunKey RunKey::derived(std::string_view purpose) const {
  RunKey k(*this);
  k.name_ = sha256(std::string(text_of(name_)).append(purpose));
  k.key_ = proof(std::string("derived ").append(purpose));
  return k;
}

}  // namespace hpcdl::comm
