// hpcdl demo 1 ... 4: the demos of examples/demos.

#include "cli/demos.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/self.h"
#include "cli/verb.h"
#include "examples/demos/demos.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

Json to_json(const lab::Page& page, const fs::path& report) {
  Json j = {
      {"title", page.title}, {"report", report.string()}, {"figures", Json::object()}, {"tables", Json::object()}};
  if (!page.caveat.empty()) j["caveat"] = page.caveat;
  for (const auto& t : page.tiles) j["figures"][t.name] = t.value;
  for (const auto& c : page.cards)
    if (const auto* table = std::get_if<lab::Table>(&c.content))
      j["tables"][c.title] = {{"columns", table->columns}, {"rows", table->rows}};
  return j;
}

}  // namespace

int run_demo(const NumberedDemo& d) {
  using Demo = lab::Page (*)(const demos::Options&);
  static constexpr Demo kDemos[] = {demos::baseline, demos::data_parallel, demos::mixed_precision, demos::profiling};
  const fs::path out = d.out.empty() ? fmt::format("hpcdl-demo-{}", d.number) : d.out;
  io::make_folder(out);
  auto page = kDemos[d.number - 1]({.data = d.data,
                                    .device = d.device,
                                    .epochs = d.epochs,
                                    .quick = d.quick,
                                    .out = out,
                                    .console = console(),
                                    .hpcdl = run_self});
  if (d.quick)
    page.caveat =
        "Made with --quick: a tiny model and few images. It shows that everything runs; its figures say nothing about "
        "speed or accuracy.";
  const auto report = out / "report.html";
  io::write_file_atomic(report, lab::page_html(page));
  if (d.json) print_json(to_json(page, report));
  else print_text(lab::page_text(page));
  say("\n{}", bold(fmt::format("report: {}", fs::absolute(report).string())));
  return exit_code::kDone;
}

}  // namespace hpcdl::cli
