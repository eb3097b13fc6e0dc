#include "cli/bench_python.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/temp_folder.h"

extern char** environ;

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

bool lives_in_python(const std::string& name) { return name == "torch" || name == "triton"; }

/// The environment of the child: it finds the module of a build, next to the program, without an installation.
std::vector<std::string> child_environment() {
  std::vector<std::string> out;
  std::error_code ignored;
  const auto beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "python";
  const char* old = std::getenv("PYTHONPATH");
  for (char** e = environ; *e; ++e)
    if (!std::string_view(*e).starts_with("PYTHONPATH=")) out.emplace_back(*e);
  if (fs::exists(beside / "hpcdl", ignored))
    out.push_back("PYTHONPATH=" + beside.string() + (old && *old ? std::string(":") + old : ""));
  else if (old) out.push_back(std::string("PYTHONPATH=") + old);
  return out;
}

/// Exit code of a program found on the PATH; its stdout goes to our stderr, its stderr to `errors` unless that is
/// empty.
int run_program(const std::vector<std::string>& words, const fs::path& errors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  if (!errors.empty())
    posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  auto owned = words, environment = child_environment();
  std::vector<char*> argv, envp;
  for (auto& w : owned) argv.push_back(w.data());
  for (auto& e : environment) envp.push_back(e.data());
  argv.push_back(nullptr), envp.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string last_line(const fs::path& file) {
  std::string text = fs::exists(file) ? io::read_file(file) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

/// A Python that has our module; if there is none, empty, and the reason.
std::string find_python(const fs::path& scratch, std::string& why) {
  const char* chosen = std::getenv("HPCDL_BENCH_PYTHON");
  for (const std::string python : {chosen && *chosen ? chosen : "python3", "/usr/bin/python3"}) {
    const int code = run_program({python, "-W", "ignore", "-c", "import hpcdl.bench"}, scratch / "errors");
    if (code == 0) return python;
    if (why.empty())
      why = fmt::format("{}: {}; install the module (pip install .) or name a Python that has it in HPCDL_BENCH_PYTHON",
                        python, code == 127 ? "not found" : last_line(scratch / "errors"));
    if (chosen && *chosen) break;
  }
  return "";
}

Json request(const PythonPeers& peers, const std::vector<lab::Case>& cases, const lab::compare::Options& p, int threads,
             const std::string& device) {
  Json j = {{"vs", peers.names},
            {"go_on", peers.go_on},
            {"threads", threads},
            {"device", device},
            {"cases", Json::array()},
            {"protocol",
             {{"cache", p.cache == lab::compare::Cache::flushed ? "flushed" : "warm"},
              {"rounds", p.rounds},
              {"target", p.target},
              {"limit", p.limit},
              {"half_width", p.half_width},
              {"settle", p.settle},
              {"seed", p.seed}}}};
  for (const auto& c : cases)
    j["cases"].push_back(
        {{"op", c.op}, {"shape", c.shape}, {"dtype", lab::dtype_word(c.dtype)}, {"backward", c.backward}});
  return j;
}

/// Copies one case of the answer into ours. Peers were timed in turns with our kernel called from Python: that side
/// keeps its own name.
std::string merge(const lab::Case& c, const Json& from, Json& to) {
  const bool fault = to.contains("fault");
  const Json sides = from.value("sides", Json::object()), missing = from.value("missing", Json::object()),
             ratios = from.value("ratios", Json::object());
  for (const auto& [name, side] : sides.items()) to["sides"][name == "hpcdl" ? "hpcdl from Python" : name] = side;
  for (const auto& [name, why] : missing.items()) to["missing"][name] = why;
  std::string text;
  for (const auto& [name, r] : ratios.items()) {
    if (!fault) to["ratios"][name] = r;
    text += fmt::format("  x{:.2f} [{:.2f} {:.2f}] {}", r.at("median").get<double>(), r.at("low").get<double>(),
                        r.at("high").get<double>(), name);
  }
  return text.empty() || fault ? "" : fmt::format("{:<44}{}\n", lab::case_label(c), text);
}

}  // namespace

std::string python_peers(const PythonPeers& peers, const std::vector<lab::Case>& cases,
                         const lab::compare::Options& protocol, int threads, const std::string& device, Json& out) {
  PythonPeers mine = peers;
  std::erase_if(mine.names, [](const std::string& n) { return !lives_in_python(n); });
  if (mine.names.empty()) return "";
  const io::TempFolder scratch;
  std::string why;
  const auto python = find_python(scratch.path(), why);
  if (!python.empty()) {
    io::write_file_atomic(scratch / "request.json", request(mine, cases, protocol, threads, device).dump());
    const int code = run_program({python, "-W", "ignore", "-m", "hpcdl.bench", (scratch / "request.json").string(),
                                  (scratch / "answer.json").string()},
                                 {});
    if (code != 0) why = fmt::format("{} -m hpcdl.bench ended with code {}; its message is above", python, code);
  }
  if (!why.empty() && !fs::exists(scratch / "answer.json")) {
    for (const auto& n : mine.names) out["missing"][n] = why;
    return "";
  }
  const auto answer = Json::parse(io::read_file(scratch / "answer.json"));
  for (const auto& [name, what] : answer.at("peers").items()) out["peers"][name] = what;
  for (const auto& [name, what] : answer.at("missing").items()) out["missing"][name] = what;
  std::string text;
  for (std::size_t i = 0; i < cases.size(); ++i) text += merge(cases[i], answer.at("cases").at(i), out["cases"][i]);
  return text;
}

}  // namespace hpcdl::cli
