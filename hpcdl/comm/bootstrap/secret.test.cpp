#include "hpcdl/comm/bootstrap/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::comm {
namespace {

std::string hex(const Digest& d) { return hexadecimal(text_of(d)); }

/// FIPS 180-4 and RFC 4231.
TEST(secret, digests_are_those_of_the_standards) {
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(secret, keys_differ_by_token_secret_and_purpose) {
  const RunKey a("run", "secret"), again("run", "secret"), other_run("walk", "secret"), other("run", "another");
  EXPECT_TRUE(same(a.proof("x"), again.proof("x")));
  EXPECT_FALSE(same(a.proof("x"), a.proof("y")));
  EXPECT_FALSE(same(a.proof("x"), other.proof("x")));
  EXPECT_FALSE(same(a.proof("x"), other_run.proof("x")));
  EXPECT_TRUE(same(a.name(), other.name()));  // of one run, whose members may have different secrets
  EXPECT_FALSE(same(a.name(), other_run.name()));
  EXPECT_FALSE(same(a.derived("1").proof("x"), a.derived("2").proof("x")));
  EXPECT_FALSE(same(a.derived("1").name(), a.derived("2").name()));
  EXPECT_NE(new_secret(), new_secret());
  EXPECT_EQ(new_secret().size(), 64u);
}

class Variable {
 public:
  explicit Variable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) before_ = value, was_set_ = true;
    unsetenv(name);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  void set(const std::string& value) const { setenv(name_, value.c_str(), 1); }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

std::string error_of_job_secret() {
  try {
    job_secret();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(secret, of_a_job_comes_from_a_variable_or_a_file_of_the_user_alone) {
  const Variable secret("HPCDL_SECRET"), file("HPCDL_SECRET_FILE");
  EXPECT_EQ(job_secret(), "");
  const io::TempFolder folder;
  const auto path = (folder / "secret").string();
  std::ofstream(path) << "0123456789abcdef0123\n";
  file.set(path);
  chmod(path.c_str(), 0644);
  EXPECT_NE(error_of_job_secret().find("chmod 600"), std::string::npos) << error_of_job_secret();
  chmod(path.c_str(), 0600);
  EXPECT_EQ(job_secret(), "0123456789abcdef0123");
  secret.set("fedcba9876543210fedc");
  EXPECT_EQ(job_secret(), "fedcba9876543210fedc");
  secret.set("short");
  EXPECT_NE(error_of_job_secret().find("5 bytes"), std::string::npos) << error_of_job_secret();
  secret.set("");
  file.set(folder.path().string());
  EXPECT_NE(error_of_job_secret().find("is not a file"), std::string::npos) << error_of_job_secret();
  file.set((folder / "none").string());
  EXPECT_NE(error_of_job_secret().find("cannot read"), std::string::npos) << error_of_job_secret();
}

}  // namespace
}  // namespace hpcdl::comm
