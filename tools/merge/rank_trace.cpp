#include "tools/merge/rank_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"

namespace hpcdl::lab {

namespace {

/// "[0,1]" as C12 writes it, or a list.
std::vector<int> members_of(const io::Json& args) {
  const auto it = args.find("Process Group Ranks");
  if (it == args.end()) return {};
  const auto list = it->is_string() ? io::parse_json(it->get<std::string>(), "Process Group Ranks") : *it;
  return list.get<std::vector<int>>();
}

RankWork work_of(const io::Json& e, std::map<std::string, int>& sequence) {
  RankWork w;
  w.begin = e.at("ts").get<double>();
  w.end = w.begin + e.at("dur").get<double>();
  w.name = e.at("cat") == "plain_step" ? "steps not recorded" : e.at("name").get<std::string>();
  const io::Json none = io::Json::object();
  const auto& args = e.contains("args") ? e.at("args") : none;
  if (e.at("cat") == "collective") {
    w.members = members_of(args);
    const int in_order = sequence[w.name]++;
    w.match = fmt::format("{}#{}", w.name, args.value("seq", in_order));
    for (const int m : w.members) w.match += fmt::format(",{}", m);
  }
  if (const auto scope = args.value("scope", std::string()); !scope.empty())
    w.name = fmt::format("{} {}", w.name, scope);
  return w;
}

void read_event(RankTrace& t, const io::Json& e, std::map<std::string, int>& sequence) {
  if (e.at("ph") != "X") return;
  const std::string category = e.value("cat", ""), name = e.at("name");
  if (category == "cpu_op" || category == "kernel" || category == "collective" || category == "plain_step" ||
      (category == "user_annotation" && name == stage_name(train::Stage::data)))
    t.work.push_back(work_of(e, sequence));
  const bool step = (category == "user_annotation" || category == "plain_step") && name.starts_with("step ");
  if (step) t.step_begin[e.at("args").at("step").get<int>()] = e.at("ts").get<double>();
}

void read_clock(RankTrace& t) {
  const auto& clock = t.json.at("hpcdl").at("clock");
  t.clock.host = clock.at("host").get<std::string>();
  t.clock.base = clock.at("base_ns").get<std::int64_t>();
  t.clock.unix_base = clock.value("unix_base_ns", std::int64_t{0});
  if (const auto pings = clock.find("pings"); pings != clock.end())
    for (const auto& p : *pings)
      t.clock.pings.push_back({p.at("sent_ns").get<std::int64_t>(), p.at("answered_ns").get<std::int64_t>(),
                               p.at("received_ns").get<std::int64_t>()});
}

}  // namespace

RankTrace parse_rank_trace(std::string_view json, const std::string& file) {
  RankTrace t;
  t.file = file;
  t.json = io::parse_json(json, file);
  const auto ours = t.json.is_object() ? t.json.find("hpcdl") : t.json.end();
  if (ours != t.json.end() && ours->is_object() && ours->contains("clocks"))
    fail("merge", "{}: this file already has the traces of several ranks: give those of single ranks", file);
  try {
    const auto& info = t.json.at("distributedInfo");
    t.rank = info.at("rank").get<int>();
    t.world = info.at("world_size").get<int>();
    read_clock(t);
    std::map<std::string, int> sequence;
    for (const auto& e : t.json.at("traceEvents")) read_event(t, e, sequence);
  } catch (const nlohmann::json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.out_of_range.403] key 'ts' not found"
    fail("merge", "{}: not a trace of hpcdl profile: {}", file, what.substr(what.find("] ") + 2));
  }
  std::stable_sort(t.work.begin(), t.work.end(),
                   [](const RankWork& a, const RankWork& b) { return a.begin < b.begin; });
  return t;
}

RankTrace read_rank_trace(const std::filesystem::path& path) {
  return parse_rank_trace(read_trace(path), path.string());
}

}  // namespace hpcdl::lab
