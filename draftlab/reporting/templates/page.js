// Tables sort by a click on a title and copy as Markdown. Without this they are plain tables.
"use strict";
(function () {
  function valueOf(cell) {
    var text = cell.textContent.trim();
    var number = parseFloat(text.replace(/,/g, ""));
    return { text: text, number: number, missing: text === "–" };
  }

  function compare(a, b) {
    if (a.missing || b.missing) return a.missing === b.missing ? 0 : a.missing ? 1 : -1;
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number - b.number;
    return a.text.localeCompare(b.text);
  }

  function sortBy(table, index, heads) {
    var head = heads[index];
    var falling = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    Array.prototype.forEach.call(table.tBodies, function (body) {
      var rows = Array.prototype.map.call(body.rows, function (row, place) {
        return { row: row, place: place, value: valueOf(row.cells[index]) };
      });
      rows.sort(function (a, b) {
        var order = compare(a.value, b.value);
        if (falling && !a.value.missing && !b.value.missing) order = -order;
        return order || a.place - b.place;
      });
      rows.forEach(function (entry) { body.appendChild(entry.row); });
    });
  }

  function makeSortable(table) {
    var heads = Array.prototype.slice.call(table.querySelectorAll("tr.titles th"));
    heads.forEach(function (head, index) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () { sortBy(table, index, heads); });
    });
  }

  function markdownOf(table) {
    function line(cells) {
      return "| " + cells.map(function (cell) {
        return cell.textContent.trim().replace(/\|/g, "\\|").replace(/\s+/g, " ");
      }).join(" | ") + " |";
    }
    var heads = Array.prototype.slice.call(table.querySelectorAll("tr.titles th"));
    var rule = heads.map(function (head) {
      return head.classList.contains("num") ? "---:" : ":---";
    });
    var lines = [line(heads), "|" + rule.join("|") + "|"];
    Array.prototype.forEach.call(table.querySelectorAll("tbody tr"), function (row) {
      lines.push(line(Array.prototype.slice.call(row.cells)));
    });
    return lines.join("\n") + "\n";
  }

  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("not copied"));
  }

  function makeCopyable(box, table) {
    var button = document.createElement("button");
    var said = document.createElement("span");
    button.type = "button";
    button.textContent = "copy as Markdown";
    said.setAttribute("role", "status");
    button.addEventListener("click", function () {
      copy(markdownOf(table)).then(
        function () { said.textContent = "copied"; },
        function () { said.textContent = "the browser refused"; }
      );
    });
    var tools = box.querySelector(".tools");
    tools.insertBefore(button, tools.firstChild);
    tools.appendChild(said);
  }

  document.querySelectorAll("div.table").forEach(function (box) {
    var table = box.querySelector("table");
    makeSortable(table);
    makeCopyable(box, table);
  });
})();
