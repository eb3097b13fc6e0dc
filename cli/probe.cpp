// hpcdl probe: measures the roofs of this machine and remembers them.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/remembered.h"
#include "tools/probe/probe.h"

namespace hpcdl::cli {

namespace {

struct ProbeOptions {
  std::string threads, out, svg, disk, device;
  bool json = false, quick = false, no_disk = false, anew = false;
};

/// "4", "1,2,4" and "1..8"; rising, without repeats.
std::vector<int> parse_threads(const std::string& text) {
  std::vector<int> list;
  const int most = lab::this_machine().cpus_allowed;
  const auto count = [&](const std::string& word) {
    const bool digits = !word.empty() && word.size() < 6 &&
                        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
    const int n = digits ? std::stoi(word) : 0;
    if (n < 1 || n > most)
      fail_usage(
          "probe",
          "--threads: expected numbers from 1 to {} (the CPUs this process may use) as in 1,2,4 or 1..{}, found {:?}",
          most, most, word);
    return n;
  };
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto dots = part.find("..");
    const int first = count(part.substr(0, dots)),
              last = dots == std::string::npos ? first : count(part.substr(dots + 2));
    for (int t = first; t <= last; ++t) list.push_back(t);
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  if (list.empty() && !text.empty()) count("");
  return list;
}

/// The roofs that earlier measurements found higher stay, and so do those of other thread counts and instruction sets, and of
/// networks.
void keep_best(Json& now, const Json& before) {
  for (const auto& entry : before.value("gpu_roofs", Json::array())) lab::keep_gpu_roofs(now, entry);
  if (before.contains("networks")) now["networks"] = before.at("networks");
  if (!before.contains("roofs")) return;
  for (const auto& entry : before.at("roofs")) {
    if (!entry.is_object() || !entry.contains("isa") || !entry.contains("threads")) continue;
    if (!entry["isa"].is_string() || !entry["threads"].is_number_integer()) continue;
    const std::string isa = entry["isa"];
    const int threads = entry["threads"];
    const auto old = lab::find_roofs(before, isa, threads), fresh = lab::find_roofs(now, isa, threads);
    if (old) lab::put_roofs(now, isa, threads, fresh ? lab::best_of(*fresh, *old) : *old);
  }
}

/// Keeps what only a probe of all devices measures.
void keep_others(Json& now, const Json& before, const std::string& device) {
  const auto of_gpu = [](const std::string& key) { return key.starts_with("gpu"); };
  for (const auto& [key, value] : before.items())
    if (key != "machine" && !device.empty() && of_gpu(key) != (device == "cuda")) now[key] = value;
}

std::string remember(const Json& measured, bool anew, const std::string& device) try {
  Json file = measured;
  const Json before = lab::read_remembered();
  if (!before.empty()) keep_others(file, before, device);
  if (!anew) keep_best(file, before);
  lab::write_remembered(file);
  return "";
} catch (const Error& e) {
  return e.what();
}

int probe(ProbeOptions& o, const Command& sub) {
  if (o.no_disk && !o.disk.empty()) fail_usage("probe", "--disk {} and --no-disk exclude each other", o.disk);
  for (const char* option : {"--threads", "--disk", "--no-disk", "--svg"})
    if (o.device == "cuda" && sub.given(option))
      fail_usage("probe", "{} is for the CPU and its disk, which --device cuda does not measure", option);
  if (o.device == "cuda") device_from_name(o.device);  // throws if there is none
  lab::ProbeOptions options{.cpu = o.device != "cuda",
                            .gpus = o.device != "cpu",
                            .threads = parse_threads(o.threads),
                            .quick = o.quick,
                            .disk = o.no_disk        ? ""
                                    : o.disk.empty() ? "."
                                                     : o.disk,
                            .version = HPCDL_VERSION};
  // Opened before anything is measured, so that "permission denied" comes at once.
  std::unique_ptr<io::AtomicFile> out, svg;
  if (!o.out.empty()) out = std::make_unique<io::AtomicFile>(o.out);
  if (!o.svg.empty()) svg = std::make_unique<io::AtomicFile>(o.svg);
  Work progress(console());
  const auto result = lab::run_probe(
      options, [&](std::string_view what, double done) { progress.show("probing", done, {{std::string(what)}}); });
  progress.end();
  const Json file = lab::to_json(result);
  if (out) out->append(file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"), out->commit();
  if (svg) svg->append(lab::to_svg(result)), svg->commit();
  const auto problem = remember(file, o.anew, o.device);
  if (o.json) print_json(file);
  else print_text(lab::to_text(result));
  if (problem.empty()) say("\nremembered in {}: percentages of roofs refer to these", lab::probe_file().string());
  else say("\nnot remembered, so every command measures for itself: {}", problem);
  return exit_code::kDone;
}

}  // namespace

void add_probe(const Command& program, Run& run) {
  add_verb<ProbeOptions>(
      program, run, "probe", "Measures what this machine can do at most: bandwidths, peaks, latencies, disk",
      [](const Command& sub, ProbeOptions& o) {
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.flag("--quick", o.quick, "Fewer rounds: a few seconds instead of half a minute on a quiet machine");
        sub.option("--device", o.device, "Measure only the CPU (cpu) or only the GPUs (cuda); default: all")
            .one_of({"cpu", "cuda"});
        sub.option("--threads", o.threads,
                   "Thread counts, such as 1,2,4 or 1..8; default: 1 to all, in powers of two beyond 8");
        sub.option("--out", o.out, "Also write the JSON object to this file");
        sub.option("--svg", o.svg, "Also draw bandwidth over working set into this file");
        sub.option("--disk", o.disk, "Folder in which a temporary file is written and read; default: this one");
        sub.flag("--no-disk", o.no_disk, "Do not measure the disk");
        sub.flag("--anew", o.anew, "Forget higher roofs that earlier measurements found on this machine");
      },
      probe);
}

}  // namespace hpcdl::cli
