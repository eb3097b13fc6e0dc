// hpcdl verify as a program: its output, its exit codes; a user's library, good and bad.

#include <gtest/gtest.h>

#include <cstdlib>

#include "hpcdl/io/atomic_file.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

/// Compiles C source text against the public header; returns the path of the library.
std::string library(const io::TempFolder& folder, const std::string& name, const std::string& source) {
  const auto c = (folder / (name + ".c")).string(), so = (folder / (name + ".so")).string();
  io::write_file_atomic(c, source);
  const std::string command =
      "'" HPCDL_CC "' -O1 -std=c99 -shared -fPIC -I '" HPCDL_SOURCE_DIR "/include' '" + c + "' -o '" + so + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return so;
}

const std::string kRelu = R"(#include "hpcdl/kernel_abi.h"
static int relu(const hpcdl_call* c) {
  const float* x = c->inputs[0].data;
  float* y = c->outputs[0].data;
  int64_t n = c->inputs[0].shape[0] * c->inputs[0].shape[1];
  for (int64_t i = 0; i < n; ++i) BODY
  return 0;
}
static const hpcdl_kernel kernels[] = {{"CONTRACT", "mine", DTYPES, 0, DEVICE, relu, NULL, NULL}};
const hpcdl_kernel_table* hpcdl_kernels(void) {
  static const hpcdl_kernel_table table = {VERSION, 1, kernels};
  return &table;
}
)";
std::string relu(std::string body, const std::string& contract = "relu",
                 const std::string& version = "HPCDL_KERNEL_ABI", const std::string& device = "HPCDL_ON_CPU",
                 const std::string& dtypes = "HPCDL_TAKES_F32") {
  std::string s = kRelu;
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"BODY", std::move(body)},
                                 {"CONTRACT", contract},
                                 {"VERSION", version},
                                 {"DEVICE", device},
                                 {"DTYPES", dtypes}})
    s.replace(s.find(from), from.size(), to);
  return s;
}

TEST(verify, our_ops_by_name) {
  const auto r = run({"verify", "softmax", "--json"});
  ASSERT_EQ(r.code, 0) << r.out << r.err;
  const auto j = r.json();
  EXPECT_EQ(j.at("faults"), 0);
  EXPECT_GT(j.at("cases"), 100);
  for (const auto& k : j.at("kernels")) {
    EXPECT_EQ(k.at("contract"), "softmax");
    for (const char* stage : {"smoke", "shapes", "stability", "determinism", "edges", "speed"})
      EXPECT_TRUE(k.at("stages").contains(stage)) << stage;
  }
  const auto one = run({"verify", "relu", "add", "--only", "edges", "--seed", "9"});
  EXPECT_EQ(one.code, 0) << one.out;
  EXPECT_NE(one.out.find("all passed"), std::string::npos);
}

TEST(verify, a_library_of_the_user) {
  const io::TempFolder folder;
  const auto good = run({"verify", library(folder, "good", relu("y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;"))});
  EXPECT_EQ(good.code, 0) << good.out << good.err;
  const auto bad =
      run({"verify", library(folder, "bad", relu("if (i % 64 != 37) y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;")),
           "--seed", "4"});
  EXPECT_EQ(bad.code, 1);
  for (const char* part :
       {"FAULT", "37] was not written, expected ", "at F32, rows 1, cols 38", "--seed 4", "1 of 1 kernels"})
    EXPECT_NE(bad.out.find(part), std::string::npos) << part << "\n" << bad.out;
  const auto crash = run({"verify", library(folder, "crash", relu("y[i] = ((volatile float*)0)[i];")), "--json"});
  EXPECT_EQ(crash.code, 1);
  EXPECT_TRUE(crash.json().at("kernels").at(0).at("fault").at("what").get<std::string>().starts_with("crashed"))
      << crash.out;
  const auto gpu =
      run({"verify", library(folder, "gpu", relu("y[i] = x[i];", "relu", "HPCDL_KERNEL_ABI", "HPCDL_ON_CUDA"))});
  EXPECT_EQ(gpu.code, 70);  // if no GPU can run it, that is not an error of the kernel
  EXPECT_TRUE(gpu.err.find("CUDA") != std::string::npos || gpu.err.find("GPU") != std::string::npos) << gpu.err;
}

/// The command that it prints for repeating a fault works, wherever the library is.
TEST(verify, the_command_to_see_a_fault_again_can_be_pasted) {
  const io::TempFolder folder;
  const auto odd = folder / "what's \"this\" $HOME";
  std::filesystem::create_directory(odd);
  std::filesystem::rename(library(folder, "bad", relu("y[i] = 1;")), odd / "bad.so");
  const auto bad = run({"verify", odd / "bad.so"});
  EXPECT_EQ(bad.code, 1) << bad.err;
  const std::string before = "again: hpcdl ";
  const auto at = bad.out.find(before);
  ASSERT_NE(at, std::string::npos) << bad.out;
  const auto words = bad.out.substr(at + before.size(), bad.out.find('\n', at) - at - before.size());
  const auto command = "'" HPCDL_PROGRAM "' " + words + " >'" + (folder / "out").string() + "' 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1) << command;
  EXPECT_NE(io::read_file(folder / "out").find("FAULT"), std::string::npos) << io::read_file(folder / "out");
}

TEST(verify, wrong_words_and_wrong_libraries) {
  const io::TempFolder folder;
  const auto expect_error = [](const Result& r, int code, const std::string& part) {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  expect_error(run({"verify", "sofmax"}), 2, "did you mean");
  expect_error(run({"verify", "relu", "--only", "speeed"}), 2, "did you mean");
  expect_error(run({"verify", "relu", "--planted"}), 2, "--planted");
  for (const char* seconds : {"0", "1e-4", "1e12", "nan"})  // in whole milliseconds: none, or too many to fit
    expect_error(run({"verify", "relu", "--timeout", seconds}), 2, "--timeout");
  expect_error(run({"verify", "./none.so"}), 70, "no such file");
  expect_error(run({"verify", HPCDL_SOURCE_DIR "/README.md"}), 70, "hpcdl_kernels");
  expect_error(run({"verify", library(folder, "empty", "int nothing;\n")}), 70, "hpcdl_kernels");
  expect_error(run({"verify", library(folder, "old", relu("y[i] = 0;", "relu", "99"))}), 70, "99");
  expect_error(run({"verify", library(folder, "device", relu("y[i] = 0;", "relu", "HPCDL_KERNEL_ABI", "2"))}), 70,
               "device_kind 2");
  expect_error(
      run({"verify", library(folder, "dtypes", relu("y[i] = 0;", "relu", "HPCDL_KERNEL_ABI", "HPCDL_ON_CPU", "9"))}),
      70, "dtypes 0x9");
  expect_error(run({"verify",
                    library(folder, "leaves",
                            "#include <stdlib.h>\n__attribute__((constructor)) static void leave(void) { exit(0); }\n" +
                                relu("y[i] = 0;"))}),
               70, "loading it ended the process with exit code 0");
  expect_error(run({"verify", library(folder, "name", relu("y[i] = 0;", "relo"))}), 2, "relu");
}

TEST(verify, contracts_are_listed) {
  const auto r = run({"verify", "--contracts"});
  EXPECT_EQ(r.code, 0);
  for (const char* name : {"softmax(x) -> y", "attention(q, k, v) -> out", "int4_linear(", "adamw("})
    EXPECT_NE(r.out.find(name), std::string::npos) << name;
}

}  // namespace
}  // namespace hpcdl::cli_test
