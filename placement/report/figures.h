#ifndef REFRACT_PLACEMENT_REPORT_FIGURES_H_
#define REFRACT_PLACEMENT_REPORT_FIGURES_H_

// Tables and line charts as one HTML page that needs no other files and no
// network: the reports of simulations and loans.

#include <string>
#include <utility>
#include <vector>

namespace refract::placement {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending, all ≥ 0
  bool steps = false;  // a value holds until the next point
};

struct Chart {
  std::string title;
  std::string x;
  std::string y;
  std::vector<Line> lines;
};

struct Table {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // as many cells as `head`
};

struct Figures {
  std::string title;
  std::vector<std::string> notes;  // paragraphs under the title
  std::vector<Table> tables;
  std::vector<Chart> charts;
};

// Lines of more than a thousand points are thinned out evenly.
std::string FiguresToHtml(const Figures& figures);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_REPORT_FIGURES_H_
