#include "tools/profile/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"

namespace hpcdl::lab {

namespace {

using Json = nlohmann::ordered_json;

std::string in_quotes(std::string_view text) { return Json(std::string(text)).dump(); }

/// Nanoseconds as microseconds, exactly.
std::string micros(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// The text of a record's event that is the same in all steps: everything before "of_roof".
struct RecordText {
  std::string head;  // {"name":...,"cat":...,"ph":"X","pid":..,"tid":..
  std::string args;  // "phase":...,"shapes":[...]
  double light = 0;
  std::string name;
  bool collective = false;
};

class Writer {
 public:
  Writer(const Profile& profile, const Roofs& roofs, const TraceOptions& options);
  TraceText write();

 private:
  void names();
  RecordText describe(const ProgramFacts& facts, const Record& record) const;
  void step(const StepTrace& step);
  void flush();
  void run(const ProgramRun& run);
  void layers(const ProgramRun& run);
  void memory(const ProgramRun& run);
  void device(const StepTrace& step);
  bool on_gpu() const { return !profile_.how.empty(); }
  void event(std::string_view head, std::int64_t begin, std::int64_t end, std::string_view args);
  std::string head(std::string_view name, std::string_view category, Track track) const;
  std::string footer(const TraceText& text) const;

  const Profile& profile_;
  TraceOptions options_;
  std::int64_t base_ = 0;
  std::string out_;
  std::vector<std::pair<std::int64_t, std::string>> events_;  // of one step, by begin
  std::vector<std::vector<RecordText>> records_;              // per program
  std::map<std::string, int> sequence_;                       // collectives so far, by name
};

Writer::Writer(const Profile& profile, const Roofs& roofs, const TraceOptions& options)
    : profile_(profile), options_(options) {
  if (!profile.steps.empty()) base_ = profile.steps.front().begin;
  for (const auto& facts : profile.programs) {
    auto& list = records_.emplace_back();
    for (const auto& r : facts.program.records) {
      list.push_back(describe(facts, r));
      const Light light = light_of(facts, r, roofs);
      list.back().light = light.network_known ? light.seconds : 0;
      list.back().args += fmt::format(",\"flops\":{:.0f},\"bytes\":{:.0f},\"bound\":\"{}\"", r.cost.operations,
                                      r.cost.bytes(), bound_name(light.bound));
      if (!light.network_known) list.back().args += ",\"network\":\"not measured\"";
    }
  }
}

std::string Writer::head(std::string_view name, std::string_view category, Track track) const {
  return fmt::format("{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{}", in_quotes(name), category,
                     profile_.rank, static_cast<int>(track));
}

RecordText Writer::describe(const ProgramFacts& facts, const Record& record) const {
  RecordText text;
  text.name = record_name(record);
  text.collective = is_collective(record.op);
  text.head = head(text.name, text.collective ? "collective" : on_gpu() ? "gpu_op" : "cpu_op", Track::records);
  std::string shapes;
  const Operand* first = nullptr;
  for (std::uint32_t k = 0; k < std::min<std::uint32_t>(record.operand_count, 8); ++k) {
    const auto& o = facts.program.operands[record.operands + k];
    if (o.slot < 0) continue;
    if (!first) first = &o;
    shapes += (shapes.empty() ? "" : ",") + in_quotes(to_string(o.spec));
  }
  text.args = fmt::format("\"scope\":{},\"phase\":\"{}\",\"shapes\":[{}]",
                          in_quotes(facts.program.scopes[record.scope]), phase_name(record.phase), shapes);
  if (!text.collective || !first) return text;
  std::string ranks;
  for (int r = 0; r < profile_.world; ++r) ranks += fmt::format("{}{}", r ? "," : "", r);
  text.args += fmt::format(
      ",\"Collective name\":{},\"In msg nelems\":{},\"dtype\":\"{}\",\"Group size\":{},\"Process Group "
      "Ranks\":\"[{}]\"",
      in_quotes(record.op), first->spec.size(), dtype_name(first->spec.dtype), profile_.world, ranks);
  return text;
}

void Writer::event(std::string_view head, std::int64_t begin, std::int64_t end, std::string_view args) {
  events_.emplace_back(begin, fmt::format("{},\"ts\":{},\"dur\":{},\"args\":{{{}}}}},\n", head, micros(begin - base_),
                                          micros(end - begin), args));
}

void Writer::names() {
  const auto meta = [&](std::string_view what, int track, std::string_view key, const std::string& value) {
    out_ += fmt::format("{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"{}\":{}}}}},\n", what,
                        profile_.rank, track, key, value);
  };
  meta("process_name", 0, "name", in_quotes(fmt::format("rank {}", profile_.rank)));
  meta("process_sort_index", 0, "sort_index", std::to_string(profile_.rank));
  constexpr std::pair<Track, const char*> kTracks[] = {
      {Track::steps, "steps"}, {Track::stages, "stages"}, {Track::layers, "layers"}, {Track::records, "records"}};
  const auto track_name = [&](Track track, const char* name) {
    meta("thread_name", static_cast<int>(track), "name", in_quotes(name));
    meta("thread_sort_index", static_cast<int>(track), "sort_index", std::to_string(static_cast<int>(track)));
  };
  for (const auto& [track, name] : kTracks) track_name(track, name);
  if (profile_.world > 1) track_name(Track::exchange, "gradients of all ranks");
  if (on_gpu()) track_name(Track::kernels, "GPU kernels"), track_name(Track::queue, "host queues");
}

void Writer::layers(const ProgramRun& run) {
  const auto& program = profile_.programs[static_cast<std::size_t>(run.program)].program;
  for (const auto& [layer, phase, begin, end] : layer_spans(program, run))
    event(head(layer, "user_annotation", Track::layers), begin, end,
          fmt::format("\"phase\":\"{}\"", phase_name(phase)));
}

/// Writes memory where it changes.
void Writer::memory(const ProgramRun& run) {
  const auto& live = profile_.programs[static_cast<std::size_t>(run.program)].live_bytes;
  std::int64_t before = -1;
  for (std::size_t i = 0; i < run.times.size(); ++i) {
    if (i + 1 < run.times.size() && run.times[i].begin > run.times[i + 1].begin) continue;  // waited for later
    if (live[i] != before)
      events_.emplace_back(
          run.times[i].begin,
          fmt::format("{{\"name\":\"planned memory in "
                      "use\",\"ph\":\"C\",\"pid\":{},\"tid\":0,\"ts\":{},\"args\":{{\"bytes\":{}}}}},\n",
                      profile_.rank, micros(run.times[i].begin - base_), live[i]));
    before = live[i];
  }
}

void Writer::run(const ProgramRun& run) {
  const auto& texts = records_[static_cast<std::size_t>(run.program)];
  const std::size_t threads = run.times.empty() ? 0 : run.busy.size() / run.times.size();
  for (std::size_t i = 0; i < run.times.size(); ++i) {
    const auto& text = texts[i];
    const auto& time = run.times[i];
    auto args = fmt::format("\"record\":{},{}", i, text.args);
    if (const auto ns = static_cast<double>(time.end - time.begin); ns > 0) {
      if (text.light > 0) args += fmt::format(",\"of_roof\":{:.3f}", text.light * 1e9 / ns);
      if (threads > 1) {
        double busy = 0;
        for (std::size_t t = 0; t < threads; ++t) busy += static_cast<double>(run.busy[i * threads + t]);
        args += fmt::format(",\"threads_busy\":{:.3f}", std::min(1.0, busy / (ns * static_cast<double>(threads))));
      }
    }
    if (text.collective) args += fmt::format(",\"seq\":{}", sequence_[text.name]++);
    event(text.head, time.begin, time.end, args);
  }
  for (const auto& e : run.exchanges) {
    const auto& text = texts[static_cast<std::size_t>(e.record)];
    event(head(text.name, "exchange", Track::exchange), e.begin, e.end,
          fmt::format("\"record\":{},{}", e.record, text.args));
  }
}

void Writer::step(const StepTrace& step) {
  if (!step.recorded) {
    event(head(fmt::format("step {} (not recorded)", step.step + 1), "plain_step", Track::steps), step.begin, step.end,
          fmt::format("\"step\":{}", step.step + 1));
    return;
  }
  event(head(fmt::format("step {}", step.step + 1), "user_annotation", Track::steps), step.begin, step.end,
        fmt::format("\"step\":{}", step.step + 1));
  for (const auto& s : step.stages)
    event(head(stage_name(s.stage), "user_annotation", Track::stages), s.begin, s.end,
          fmt::format("\"step\":{}", step.step + 1));
  for (const auto& r : step.runs) layers(r), run(r), memory(r);
  device(step);
}

void Writer::device(const StepTrace& step) {
  constexpr std::string_view kCategories[] = {"kernel", "gpu_memcpy", "gpu_memset"};
  for (const auto& r : step.runs)
    if (r.host.end > r.host.begin)
      event(head("queue", "cpu_op", Track::queue), r.host.begin, r.host.end, fmt::format("\"program\":{}", r.program));
  for (const auto& d : step.device) {
    std::string args;
    if (d.run >= 0)
      args = fmt::format("\"record\":{},\"program\":{}", d.record, step.runs[static_cast<std::size_t>(d.run)].program);
    event(head(d.name, kCategories[static_cast<int>(d.kind)], Track::kernels), d.begin, d.end, args);
  }
}

/// In order of time, across all rows.
void Writer::flush() {
  std::stable_sort(events_.begin(), events_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [when, text] : events_) out_ += text;
  events_.clear();
}

std::string Writer::footer(const TraceText& text) const {
  const auto clock = trace_clock(base_);
  Json pings = Json::array();
  for (const auto& p : options_.pings)
    pings.push_back({{"sent_ns", p.sent}, {"answered_ns", p.answered}, {"received_ns", p.received}});
  const Json facts = {
      {"version", 1},
      {"steps", text.steps},
      {"steps_left_out", text.left_out},
      {"threads", profile_.threads},
      {"clock", {{"host", clock.host}, {"base_ns", clock.base}, {"unix_base_ns", clock.unix_base}, {"pings", pings}}}};
  return fmt::format(
      "],\n\"displayTimeUnit\":\"ms\",\n\"baseTimeNanoseconds\":{},\n\"distributedInfo\":{{\"backend\":\"{}\",\"rank\":"
      "{},\"world_size\":{}}},\n\"hpcdl\":{}}}\n",
      clock.unix_base, profile_.world > 1 ? "hpcdl" : "none", profile_.rank, profile_.world, facts.dump());
}

TraceText Writer::write() {
  TraceText text;
  out_ = "{\"traceEvents\":[\n";
  names();
  for (const auto& s : profile_.steps) {
    const auto before = out_.size();
    const auto sequence = sequence_;
    if (text.left_out == 0) step(s), flush();
    if (text.left_out > 0 || static_cast<std::int64_t>(out_.size()) > options_.limit) {
      out_.resize(before);
      sequence_ = sequence;
      text.left_out += s.recorded;
    } else {
      text.steps += s.recorded;
    }
  }
  out_.resize(out_.size() - 2);  // the last comma
  text.json = out_ + footer(text);
  return text;
}

}  // namespace

TraceClock trace_clock(std::int64_t base) {
  TraceClock clock;
  clock.base = base;
  try {
    clock.host = io::read_file("/proc/sys/kernel/random/boot_id");
    while (!clock.host.empty() && clock.host.back() == '\n') clock.host.pop_back();
  } catch (const Error&) {
    char name[256] = {};
    clock.host = ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
  }
  std::error_code ignored;
  // A time namespace shifts the monotonic clock.
  if (const auto space = std::filesystem::read_symlink("/proc/self/ns/time", ignored); !ignored)
    clock.host += " " + space.string();
  const auto unix_now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  clock.unix_base = unix_now - (now_ns() - base);
  return clock;
}

TraceText trace_text(const Profile& profile, const Roofs& roofs, const TraceOptions& options) {
  return Writer(profile, roofs, options).write();
}

}  // namespace hpcdl::lab
