// What a dashboard of emu may hold: Grafana's own types, put together for the panel types in use and for Prometheus' queries.
// generate.sh makes dashboard.schema.json of it.
import type { AnnotationQuery, Dashboard, DataSourceRef, FieldConfig, FieldConfigSource, Panel, RowPanel } from './types/dashboard';
import type { BargaugeOptions } from './types/bargauge';
import type { HeatmapFieldConfig, HeatmapOptions } from './types/heatmap';
import type { StatOptions } from './types/stat';
import type { StatetimelineFieldConfig, StatetimelineOptions } from './types/statetimeline';
import type { StatushistoryFieldConfig, StatushistoryOptions } from './types/statushistory';
import type { TableFieldConfig, TableOptions } from './types/table';
import type { TextOptions } from './types/text';
import type { TimeseriesFieldConfig, TimeseriesOptions } from './types/timeseries';

type Target = {
  refId: string;
  datasource: DataSourceRef;
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
};
type PanelOf<Type, Options, Custom> = Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: Type;
  options: Options;
  targets?: Target[];
  fieldConfig: Omit<FieldConfigSource, 'defaults'> & { defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> } };
};
type Nothing = Record<string, never>;

export type Row = RowPanel;
export type Bargauge = PanelOf<'bargauge', BargaugeOptions, Nothing>;
export type Heatmap = PanelOf<'heatmap', HeatmapOptions, HeatmapFieldConfig>;
export type Stat = PanelOf<'stat', StatOptions, Nothing>;
export type StateTimeline = PanelOf<'state-timeline', StatetimelineOptions, StatetimelineFieldConfig>;
export type StatusHistory = PanelOf<'status-history', StatushistoryOptions, StatushistoryFieldConfig>;
export type Table = PanelOf<'table', TableOptions, TableFieldConfig>;
export type Text = PanelOf<'text', TextOptions, Nothing>;
export type Timeseries = PanelOf<'timeseries', TimeseriesOptions, TimeseriesFieldConfig>;
// The Prometheus plugin reads these beside what all annotations have.
export type Annotation = Omit<AnnotationQuery, 'target'> & {
  target: { refId: string; expr: string; interval: string };
  titleFormat: string;
  textFormat: string;
};
export type EmuDashboard = Omit<Dashboard, 'annotations' | 'panels'> & {
  annotations: { list: Annotation[] };
  panels: (Bargauge | Heatmap | Row | Stat | StateTimeline | StatusHistory | Table | Text | Timeseries)[];
};
