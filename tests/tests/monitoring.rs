//! What is shipped for Prometheus and Grafana, judged by Prometheus' own tool.

use haversack_e2e::error::check;
use haversack_e2e::{Error, Result, test, tools};

fn promtool(arguments: &[&str]) -> Result<String> {
    let mut promtool = tools::tool("promtool")?;
    promtool.args(arguments).current_dir(tools::workspace().join("packaging/prometheus"));
    tools::run(promtool)
}

#[test]
fn the_alerts_are_valid_and_fire_when_they_should() {
    test("Prometheus alerts", |place| {
        promtool(&["check", "rules", "haversack.rules.yml"])?;
        promtool(&["test", "rules", "haversack.rules.test.yml"])?;
        let read = |file: &str| {
            let path = tools::workspace().join("packaging/prometheus").join(file);
            std::fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))
        };
        let rules = read("haversack.rules.yml")?;
        let tests = read("haversack.rules.test.yml")?;
        let alerts: Vec<&str> =
            rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        let runbooks = tools::workspace().join("docs/runbooks.md");
        let runbooks = std::fs::read_to_string(runbooks).map_err(Error::io("docs/runbooks.md"))?;
        let anchors: Vec<String> = runbooks
            .lines()
            .filter_map(|line| Some(line.strip_prefix("## ")?.to_lowercase().replace(' ', "-")))
            .collect();
        for line in rules.lines().filter(|line| line.contains("runbook:")) {
            let where_packages_have_it = "/usr/share/doc/haversack/runbooks.md#";
            check(line.contains(where_packages_have_it), format!("nobody finds this: {line}"))?;
            let anchor = line.trim_end_matches('\'').rsplit('#').next().unwrap_or_default();
            check(anchors.iter().any(|heading| heading == anchor), format!("no runbook {anchor}"))?;
        }
        for alert in &alerts {
            check(tests.contains(&format!("- name: {alert}\n")), format!("no test of {alert}"))?;
        }
        place.say(&format!("{} alerts", alerts.len()));
        check(!alerts.is_empty(), "no alerts")
    });
}

#[test]
fn the_queries_of_the_grafana_dashboard_are_valid() {
    test("Grafana dashboard", |place| {
        let path = tools::workspace().join("packaging/grafana/haversack.json");
        let text = std::fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
        let dashboard: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| Error::Check(format!("{path:?}: {error}")))?;
        let panels = dashboard["panels"].as_array().into_iter().flatten();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let queries: Vec<String> = targets
            .filter_map(|target| Some(target["expr"].as_str()?.replace("$__rate_interval", "5m")))
            .collect();
        // As recording rules, whose expressions promtool parses. JSON is YAML.
        let rules: Vec<_> = queries
            .iter()
            .enumerate()
            .map(|(at, query)| serde_json::json!({"record": format!("query_{at}"), "expr": query}))
            .collect();
        let file = place.path("queries.yml");
        let groups = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
        std::fs::write(&file, groups.to_string()).map_err(Error::io("the queries"))?;
        let said = promtool(&["check", "rules", &file.display().to_string()])?;
        check(said.contains(&format!("{} rules found", queries.len())) && queries.len() > 20, said)
    });
}
