#include "cli/load_option.h"

#include "cli/parsed.h"

namespace hpcdl::cli {

io::LoadOptions LoadOption::checked(std::string_view verb) const {
  auto o = checked_for_many(verb);
  if (o.choices.size() > 1)
    fail_usage(
        verb,
        "{} adapters are given, but a text can use only one: give one --adapter, or let each text name its own, with "
        "hpcdl generate --prompts or hpcdl serve",
        o.choices.size());
  if (!o.choices.empty()) o.adapter = o.choices[0].folder, o.choices.clear();
  return o;
}

io::LoadOptions LoadOption::checked_for_many(std::string_view verb) const {
  io::LoadOptions o{.mode = parsed<io::LoadMode>(verb, "--load", load, {})};
  if (!ram.empty()) o.ram = parsed<std::int64_t>(verb, "--ram", ram, {.min = 1, .max = 1e18, .unit = io::Unit::bytes});
  if (!vram.empty())
    o.vram = parsed<std::int64_t>(verb, "--vram", vram, {.min = 1, .max = 1e18, .unit = io::Unit::bytes});
  o.use(io::read_adapters(verb, adapter));
  return o;
}

void add_load_options(const Command& sub, LoadOption& o) {
  sub.option("--ram", o.ram,
             "CPU: memory for weights, such as 8G; layers that do not fit are read again for every pass")
      .kind("SIZE");
  sub.option("--vram", o.vram,
             "GPU: memory for weights, such as 16G; layers that do not fit stay in host memory and are copied in every "
             "pass")
      .kind("SIZE");
  sub.option("--load", o.load,
             "How weights are read: mapped from their files, resident (read into memory once), direct (layers stream "
             "through memory), or auto")
      .one_of(io::enum_words<io::LoadMode>())
      .shows_default();
  sub.option("--adapter", o.adapter,
             "An adapter to use beside the weights: a folder as hpcdl finetune or peft writes it; hpcdl generate "
             "--prompts takes several, which lines choose by name")
      .one_each()
      .kind("[NAME=]DIR");
}

void say_loading(const models::LanguageModel& model, const io::LoadOptions& asked) {
  const auto& how = model.loading();
  if (!how.empty() && (asked.given() || !how.starts_with("mapped"))) say("{}", dim("weights " + how));
}

}  // namespace hpcdl::cli
